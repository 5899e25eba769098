// Sums by channel of arrays with channels last, as the gradient of a bias is.
//
// Each element is read once. The loops over rows are those of batch normalisation, which compute in
// float32; sums over many rows are in double precision, and a result is rounded once.
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "row_loops.h"
#include "row_parts.h"
#include "storage.h"

namespace convoy {
namespace {

namespace ffi = xla::ffi;

template <typename T>
void AddPart(const Rows& shape, const T* x, int64_t first, int64_t count, double* sums) {
  const int64_t tile = TileOf(shape);
  ForPieces(first, count, CachedOf(shape), [&](int64_t piece, int64_t piece_count) {
    Values some(tile);
    ForPieces(piece, piece_count, tile,
              [&](int64_t at, int64_t n) { AddRows(x + at, some.data(), n); });
    Fold(some, shape.channels, sums);
  });
}

template <typename T>
void ChannelSums(const Rows& shape, const T* x, T* result, ffi::ThreadPool& pool) {
  std::vector<std::vector<double>> sums(shape.threads, std::vector<double>(shape.channels));
  const int64_t used = ForParts(shape, pool, [&](int64_t first, int64_t count, int64_t part) {
    AddPart(shape, x, first, count, sums[part].data());
  });
  Values totals(shape.channels);
  for (int64_t c = 0; c < shape.channels; ++c) {
    double total = 0;
    for (int64_t i = 0; i < used; ++i) total += sums[i][c];
    totals[c] = static_cast<float>(total);
  }
  Narrow(totals.data(), result, shape.channels);
}

// The channels are the elements of the result: those of the last axis, or a single one.
Rows ShapeOf(const ffi::AnyBuffer& x, const ffi::AnyBuffer& result, int64_t threads) {
  const auto sizes = x.dimensions();
  const auto elements = static_cast<int64_t>(x.element_count());
  const auto channels = static_cast<int64_t>(result.element_count());
  if (sizes.size() == 0 || elements < 1 || threads < 1) {
    throw std::invalid_argument("not an array of rows and channels");
  }
  if (result.element_type() != x.element_type() ||
      (channels != 1 && channels != sizes[sizes.size() - 1])) {
    throw std::invalid_argument("the result is not a number for each channel");
  }
  return {elements / channels, channels, threads};
}

ffi::Error CallChannelSums(ffi::ThreadPool pool, ffi::AnyBuffer x,
                           ffi::Result<ffi::AnyBuffer> result, int64_t threads) {
  try {
    const Rows shape = ShapeOf(x, *result, threads);
    WithStorage(x.element_type(), [&](auto number) {
      using T = decltype(number);
      ChannelSums(shape, static_cast<const T*>(x.untyped_data()),
                  static_cast<T*>(result->untyped_data()), pool);
    });
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("sums by channel: ") + error.what());
  }
}

}  // namespace
}  // namespace convoy

XLA_FFI_DEFINE_HANDLER_SYMBOL(convoy_channel_sums, convoy::CallChannelSums,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attr<int64_t>("threads"));
