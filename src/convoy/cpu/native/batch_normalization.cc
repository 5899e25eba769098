// Batch normalisation: statistics, affine map, and their gradients, each in one pass over the data.
//
// All are limited by memory bandwidth, so what counts is how often the data is read. Loops run over
// rows of channels; sums by channel are kept for each thread and joined at the end. They compute in
// float32, whatever the stored type (`row_loops.h`).
#include "batch_normalization.h"

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "row_loops.h"
#include "row_parts.h"

namespace convoy {
namespace {

Values Repeat(const float* by_channel, int64_t channels, int64_t tile) {
  Values repeated(tile);
  for (int64_t i = 0; i < tile; i += channels) std::copy_n(by_channel, channels, &repeated[i]);
  return repeated;
}

// Mean and sum of squared deviations of some rows. Two of them are combined into one by the formula
// of Chan, Golub and LeVeque: each row is read from memory once, and no large numbers are
// subtracted.
struct Spread {
  double count = 0;
  std::vector<double> mean, squares;

  explicit Spread(int64_t channels) : mean(channels), squares(channels) {}

  void Join(double other_count, const double* other_mean, const double* other_squares) {
    const double together = count + other_count;
    for (size_t c = 0; c < mean.size(); ++c) {
      const double difference = other_mean[c] - mean[c];
      mean[c] += difference * (other_count / together);
      squares[c] += other_squares[c] + difference * difference * (count * other_count / together);
    }
    count = together;
  }
};

template <typename T>
void JoinRows(const Rows& shape, const T* x, int64_t count, Spread& spread) {
  const int64_t channels = shape.channels, tile = TileOf(shape), rows = count / channels;
  std::vector<double> mean(channels), squares(channels);
  Values sums(tile);
  ForPieces(0, count, tile, [&](int64_t at, int64_t n) { AddRows(x + at, sums.data(), n); });
  Fold(sums, channels, mean.data());
  Values rounded(channels);
  for (int64_t c = 0; c < channels; ++c) {
    rounded[c] = static_cast<float>(mean[c] / rows);
    mean[c] = rounded[c];
  }
  const Values means = Repeat(rounded.data(), channels, tile);
  std::fill(sums.begin(), sums.end(), 0.0f);
  ForPieces(0, count, tile, [&](int64_t at, int64_t n) {
    AddSquares(x + at, means.data(), sums.data(), n);
  });
  Fold(sums, channels, squares.data());
  spread.Join(rows, mean.data(), squares.data());
}

}  // namespace

template <typename T>
void Moments(const Rows& shape, const T* x, float* mean, float* variance,
             xla::ffi::ThreadPool& pool) {
  const int64_t channels = shape.channels, cached = CachedOf(shape);
  std::vector<Spread> parts(shape.threads, Spread(channels));
  const int64_t used = ForParts(shape, pool, [&](int64_t first, int64_t count, int64_t part) {
    ForPieces(first, count, cached,
              [&](int64_t at, int64_t n) { JoinRows(shape, x + at, n, parts[part]); });
  });
  Spread& all = parts[0];
  for (int64_t i = 1; i < used; ++i) {
    if (parts[i].count > 0) all.Join(parts[i].count, parts[i].mean.data(), parts[i].squares.data());
  }
  for (int64_t c = 0; c < channels; ++c) {
    mean[c] = static_cast<float>(all.mean[c]);
    variance[c] = static_cast<float>(all.squares[c] / all.count);
  }
}

template <typename T>
void Affine(const Rows& shape, const T* x, const float* scale, const float* shift,
            const T* addend, bool rectify, T* y, xla::ffi::ThreadPool& pool) {
  const int64_t tile = TileOf(shape);
  const Values scales = Repeat(scale, shape.channels, tile);
  const Values shifts = Repeat(shift, shape.channels, tile);
  ForParts(shape, pool, [&](int64_t first, int64_t count, int64_t) {
    ForPieces(first, count, tile, [&](int64_t at, int64_t n) {
      ScaleRows(x + at, scales.data(), shifts.data(), addend ? addend + at : nullptr, rectify,
                y + at, n);
    });
  });
}

template <typename T>
void GradientSums(const Rows& shape, const T* dy, const T* x, const float* mean,
                  const T* rectified, float* sum, float* product,
                  xla::ffi::ThreadPool& pool) {
  const int64_t channels = shape.channels, tile = TileOf(shape), cached = CachedOf(shape);
  const Values means = Repeat(mean, channels, tile);
  std::vector<std::vector<double>> sums(shape.threads, std::vector<double>(channels));
  auto products = sums;
  const int64_t used = ForParts(shape, pool, [&](int64_t first, int64_t count, int64_t part) {
    ForPieces(first, count, cached, [&](int64_t piece, int64_t piece_count) {
      Values some(tile), some_products(tile);
      ForPieces(piece, piece_count, tile, [&](int64_t at, int64_t n) {
        AddProducts(dy + at, x + at, means.data(), rectified ? rectified + at : nullptr,
                    some.data(), some_products.data(), n);
      });
      Fold(some, channels, sums[part].data());
      Fold(some_products, channels, products[part].data());
    });
  });
  for (int64_t c = 0; c < channels; ++c) {
    double total = 0, total_product = 0;
    for (int64_t i = 0; i < used; ++i) {
      total += sums[i][c];
      total_product += products[i][c];
    }
    sum[c] = static_cast<float>(total);
    product[c] = static_cast<float>(total_product);
  }
}

template <typename T>
void InputGradient(const Rows& shape, const T* dy, const T* x, const float* a, const float* b,
                   const float* c, const T* rectified, T* dx, T* passed,
                   xla::ffi::ThreadPool& pool) {
  const int64_t tile = TileOf(shape);
  const Values as = Repeat(a, shape.channels, tile);
  const Values bs = Repeat(b, shape.channels, tile);
  const Values cs = Repeat(c, shape.channels, tile);
  ForParts(shape, pool, [&](int64_t first, int64_t count, int64_t) {
    ForPieces(first, count, tile, [&](int64_t at, int64_t n) {
      CombineRows(dy + at, x + at, as.data(), bs.data(), cs.data(),
                  rectified ? rectified + at : nullptr, dx + at, passed ? passed + at : nullptr, n);
    });
  });
}

namespace {

namespace ffi = xla::ffi;
using Array = ffi::AnyBuffer;
using Result = ffi::Result<ffi::AnyBuffer>;
using ByChannel = ffi::Buffer<ffi::F32>;
using ByChannelResult = ffi::ResultBuffer<ffi::F32>;

Rows ShapeOf(const Array& x, int64_t threads) {
  const auto sizes = x.dimensions();
  if (sizes.size() != 2 || sizes[0] < 1 || sizes[1] < 1 || threads < 1) {
    throw std::invalid_argument("not an array of rows and channels");
  }
  return {sizes[0], sizes[1], threads};
}

// An array without elements stands for a missing one.
template <typename T>
T* Data(const Array& array) {
  return array.element_count() ? static_cast<T*>(array.untyped_data()) : nullptr;
}

// Calls `work` with a number of the type of the rows, which all arrays of rows must have.
template <typename Work>
ffi::Error Guarded(std::initializer_list<ffi::DataType> types, const Work& work) {
  try {
    for (const auto type : types) {
      if (type != *types.begin()) throw std::invalid_argument("arrays of different types");
    }
    WithStorage(*types.begin(), work);
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("normalisation: ") + error.what());
  }
}

ffi::Error CallMoments(ffi::ThreadPool pool, Array x, ByChannelResult mean, ByChannelResult variance,
                       int64_t threads) {
  return Guarded({x.element_type()}, [&](auto number) {
    using T = decltype(number);
    Moments<T>(ShapeOf(x, threads), Data<T>(x), mean->typed_data(), variance->typed_data(), pool);
  });
}

ffi::Error CallAffine(ffi::ThreadPool pool, Array x, ByChannel scale, ByChannel shift, Array addend,
                      Result y, bool rectify, int64_t threads) {
  return Guarded({x.element_type(), addend.element_type(), y->element_type()}, [&](auto number) {
    using T = decltype(number);
    Affine<T>(ShapeOf(x, threads), Data<T>(x), scale.typed_data(), shift.typed_data(),
              Data<T>(addend), rectify, Data<T>(*y), pool);
  });
}

ffi::Error CallGradientSums(ffi::ThreadPool pool, Array dy, Array x, ByChannel mean, Array rectified,
                            ByChannelResult sum, ByChannelResult product, int64_t threads) {
  return Guarded({x.element_type(), dy.element_type(), rectified.element_type()},
                 [&](auto number) {
                   using T = decltype(number);
                   GradientSums<T>(ShapeOf(x, threads), Data<T>(dy), Data<T>(x), mean.typed_data(),
                                   Data<T>(rectified), sum->typed_data(), product->typed_data(),
                                   pool);
                 });
}

ffi::Error CallInputGradient(ffi::ThreadPool pool, Array dy, Array x, ByChannel a, ByChannel b, ByChannel c,
                             Array rectified, Result dx, Result passed, int64_t threads) {
  return Guarded({x.element_type(), dy.element_type(), rectified.element_type(),
                  dx->element_type(), passed->element_type()},
                 [&](auto number) {
                   using T = decltype(number);
                   InputGradient<T>(ShapeOf(x, threads), Data<T>(dy), Data<T>(x), a.typed_data(),
                                    b.typed_data(), c.typed_data(), Data<T>(rectified),
                                    Data<T>(*dx), Data<T>(*passed), pool);
                 });
}

}  // namespace
}  // namespace convoy

#define CONVOY_ARRAY Arg<convoy::Array>()
#define CONVOY_CHANNELS Arg<convoy::ByChannel>()
#define CONVOY_RESULT Ret<ffi::AnyBuffer>()
#define CONVOY_CHANNELS_RESULT Ret<convoy::ByChannel>()

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(convoy_moments, convoy::CallMoments,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .CONVOY_ARRAY.CONVOY_CHANNELS_RESULT.CONVOY_CHANNELS_RESULT
                                  .Attr<int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(convoy_affine, convoy::CallAffine,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .CONVOY_ARRAY.CONVOY_CHANNELS.CONVOY_CHANNELS.CONVOY_ARRAY
                                  .CONVOY_RESULT.Attr<bool>("rectify")
                                  .Attr<int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(convoy_gradient_sums, convoy::CallGradientSums,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .CONVOY_ARRAY.CONVOY_ARRAY.CONVOY_CHANNELS.CONVOY_ARRAY
                                  .CONVOY_CHANNELS_RESULT.CONVOY_CHANNELS_RESULT
                                  .Attr<int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(convoy_input_gradient, convoy::CallInputGradient,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .CONVOY_ARRAY.CONVOY_ARRAY.CONVOY_CHANNELS.CONVOY_CHANNELS
                                  .CONVOY_CHANNELS.CONVOY_ARRAY.CONVOY_RESULT.CONVOY_RESULT
                                  .Attr<int64_t>("threads"));
