// Transformations, products and threads of Winograd's method for 3x3 convolutions.
//
// A block of tiles passes through three steps while it stays in the cache:
//
//     TransformSource   4x4 pixels of each tile   ->  16 planes of (tiles x channels in)
//     Multiply          each plane with the transformed weights of the plane
//     WriteResult       16 planes of (tiles x channels out)  ->  2x2 pixels of each tile
//
// The transformations apply Bt, G or At to columns first and to rows then; the functions `Times...`
// apply one of the matrices to a vector of eight channels at once. Arrays in 16 bits are converted
// where the first step loads them and where the last one stores them.
#include "winograd.h"

#include <algorithm>

#include "avx2.h"
#include "instruction_set.h"
#include "products.h"

namespace convoy {
namespace {

constexpr int64_t kPlanes = 16;  // multiplications per tile and channel
// Elements between two planes. Without them planes might begin at multiples of a page, and compete
// for the same sets of the cache.
constexpr int64_t kBetweenPlanes = 16;
// Tiles in a block: few with small weights, so that the tiles stay in the second-level cache; more
// if reading the weights would take longer than the products.
constexpr int64_t kSmallBlock = 24, kLargeBlock = 48;
constexpr int64_t kSmallWeights = 256 * 256;
// Minimum number of products for each thread.
constexpr int64_t kProductsPerThread = 1 << 18;
// Maximum number of parts per thread, if every part has several blocks.
constexpr int64_t kPartsPerThread = 4;

bool AreAll(const dnnl::memory::dims& values, int64_t value) {
  return std::all_of(values.begin(), values.end(), [&](int64_t x) { return x == value; });
}

template <typename T>
T* As(char* bytes) {
  return reinterpret_cast<T*>(bytes);
}

// Loads 8x8 values, rows `row_step` apart, as columns.
template <typename T>
CONVOY_AVX2 void LoadTransposed(const T* from, int64_t row_step, Vector* columns) {
  Vector a[8], b[8];
  for (int i = 0; i < 8; ++i) a[i] = Load(from + i * row_step);
  for (int i = 0; i < 4; ++i) {
    b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    a[4 * i] = _mm256_shuffle_ps(b[4 * i], b[4 * i + 2], 0x44);
    a[4 * i + 1] = _mm256_shuffle_ps(b[4 * i], b[4 * i + 2], 0xEE);
    a[4 * i + 2] = _mm256_shuffle_ps(b[4 * i + 1], b[4 * i + 3], 0x44);
    a[4 * i + 3] = _mm256_shuffle_ps(b[4 * i + 1], b[4 * i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    columns[i] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x20);
    columns[i + 4] = _mm256_permute2f128_ps(a[i], a[i + 4], 0x31);
  }
}

// Loads weights of eight channels in; each vector holds eight channels out.
template <typename T>
CONVOY_AVX2 void LoadWeights(const T* from, int64_t in_step, int64_t out_step, Vector* to) {
  if (out_step == 1) {
    for (int i = 0; i < kLanes; ++i) to[i] = Load(from + i * in_step);
  } else if (in_step == 1) {
    LoadTransposed(from, out_step, to);
  } else {
    for (int i = 0; i < kLanes; ++i) {
      T values[kLanes];
      for (int j = 0; j < kLanes; ++j) values[j] = from[i * in_step + j * out_step];
      to[i] = Load(values);
    }
  }
}

struct Four {
  Vector x[4];
};

CONVOY_AVX2 inline Four TimesG(Vector a, Vector b, Vector c) {
  const Vector half = _mm256_set1_ps(0.5f);
  const Vector ends = _mm256_mul_ps(half, _mm256_add_ps(a, c));
  const Vector middle = _mm256_mul_ps(half, b);
  return {{a, _mm256_add_ps(ends, middle), _mm256_sub_ps(ends, middle), c}};
}

CONVOY_AVX2 inline Four TimesB(Vector a, Vector b, Vector c, Vector d) {
  return {{_mm256_sub_ps(a, c), _mm256_add_ps(b, c), _mm256_sub_ps(c, b), _mm256_sub_ps(b, d)}};
}

CONVOY_AVX2 inline Four TimesA(Vector a, Vector b) {
  return {{a, _mm256_add_ps(a, b), _mm256_sub_ps(a, b), _mm256_sub_ps(_mm256_setzero_ps(), b)}};
}

struct Two {
  Vector x[2];
};

CONVOY_AVX2 inline Two TimesAt(Vector a, Vector b, Vector c, Vector d) {
  const Vector sum = _mm256_add_ps(b, c), difference = _mm256_sub_ps(b, c);
  return {{_mm256_add_ps(a, sum), _mm256_sub_ps(difference, d)}};
}

struct Three {
  Vector x[3];
};

CONVOY_AVX2 inline Three TimesGt(Vector a, Vector b, Vector c, Vector d) {
  const Vector half = _mm256_set1_ps(0.5f);
  const Vector sum = _mm256_mul_ps(half, _mm256_add_ps(b, c));
  const Vector difference = _mm256_mul_ps(half, _mm256_sub_ps(b, c));
  return {{_mm256_add_ps(a, sum), difference, _mm256_add_ps(sum, d)}};
}

}  // namespace

bool WinogradTakes(const Convolution& it) {
  // With strides of 1, the gradient of the source arrives as a forward convolution.
  if (it.kind == Kind::kBackwardData || it.grouped || it.strides.size() != 2) return false;
  if (it.weights[2] != 3 || it.weights[3] != 3) return false;
  if (!AreAll(it.strides, 1) || !AreAll(it.dilations, 0)) return false;
  if (!IsDenseChannelsLast(it.src, it.src_strides)) return false;
  if (!IsDenseChannelsLast(it.dst, it.dst_strides)) return false;
  const int64_t in = it.src[1], out = it.dst[1];
  if (in % kColumns != 0 || out % kColumns != 0) return false;
  // Savings grow with the product of both, the cost of the transformations with their sum. With
  // AVX-512, oneDNN's gradient of few weights is faster.
  const int64_t fewest = it.kind == Kind::kBackwardWeights && !HasAvx512() ? 8 : 16;
  if (in * out / (in + out) < fewest) return false;
  // Each pass over the transformed weights, which are 16/9 of their size, should serve a block of
  // tiles. For inference they have been transformed before.
  const int64_t tiles = it.dst[0] * ((it.dst[2] + 1) / 2) * ((it.dst[3] + 1) / 2);
  const int64_t enough = it.kind == Kind::kInference ? kSmallBlock / 2 : kSmallBlock;
  return tiles >= enough && ComputesAvx2AtOnce();
}

template <typename T>
Winograd<T>::Winograd(const Convolution& it, int64_t threads)
    : kind_(it.kind), threads_(threads), batch_(it.src[0]), rectifies_(it.rectifies) {
  source_ = {it.src[2], it.src[3], it.src[1]};
  result_ = {it.dst[2], it.dst[3], it.dst[1]};
  padding_row_ = it.padding_low[0];
  padding_column_ = it.padding_low[1];
  steps_ = {it.weights_strides[1], it.weights_strides[0], it.weights_strides[2],
            it.weights_strides[3]};
  tile_rows_ = (result_.height + 1) / 2;
  tile_columns_ = (result_.width + 1) / 2;
  tiles_ = batch_ * tile_rows_ * tile_columns_;
  const bool has_small_weights = source_.channels * result_.channels <= kSmallWeights;
  block_ = has_small_weights && kind_ != Kind::kBackwardWeights ? kSmallBlock : kLargeBlock;
  zeros_.assign(std::max(source_.channels, result_.channels), T{});
}

template <typename T>
const char* Winograd<T>::implementation() const {
  return TakesAvx512() ? "winograd:avx512" : "winograd:avx2";
}

template <typename T>
size_t Winograd<T>::packed_bytes() const {
  return kPlanes * source_.channels * result_.channels * sizeof(float);
}

template <typename T>
void Winograd<T>::Pack(char* weights, char* packed) const {
  TransformWeights(As<T>(weights), {0, result_.channels / kColumns}, As<float>(packed));
}

template <typename T>
typename Winograd<T>::Place Winograd<T>::PlaceOf(int64_t tile) const {
  const int64_t of_image = tile_rows_ * tile_columns_, in_image = tile % of_image;
  return {tile / of_image, in_image / tile_columns_ * 2, in_image % tile_columns_ * 2};
}

// Into planes x (columns of 16 channels out) x (channels in) x 16.
template <typename T>
CONVOY_AVX2 void Winograd<T>::TransformWeights(const T* weights, Range columns,
                                               float* packed) const {
  const int64_t in = source_.channels, plane = in * result_.channels;
  for (int64_t column = columns.first; column < columns.last; ++column) {
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t out = column * kColumns + half * kLanes;
      for (int64_t i = 0; i < in; i += kLanes) {
        Vector taps[3][3][kLanes];
        for (int64_t row = 0; row < 3; ++row) {
          for (int64_t c = 0; c < 3; ++c) {
            LoadWeights(weights + row * steps_.row + c * steps_.column + i * steps_.in +
                            out * steps_.out,
                        steps_.in, steps_.out, taps[row][c]);
          }
        }
        for (int64_t j = 0; j < kLanes; ++j) {
          Four rows[3];
          for (int c = 0; c < 3; ++c) rows[c] = TimesG(taps[0][c][j], taps[1][c][j], taps[2][c][j]);
          float* const to = packed + (column * in + i + j) * kColumns + half * kLanes;
          for (int row = 0; row < 4; ++row) {
            const Four all = TimesG(rows[0].x[row], rows[1].x[row], rows[2].x[row]);
            for (int c = 0; c < 4; ++c) _mm256_storeu_ps(to + (row * 4 + c) * plane, all.x[c]);
          }
        }
      }
    }
  }
}

template <typename T>
CONVOY_AVX2 void Winograd<T>::TransformSource(const T* source, int64_t tile, float* to,
                                              int64_t plane) const {
  const Place place = PlaceOf(tile);
  const int64_t channels = source_.channels;
  const T* pixels[4][4];
  for (int row = 0; row < 4; ++row) {
    const int64_t y = place.row - padding_row_ + row;
    for (int column = 0; column < 4; ++column) {
      const int64_t x = place.column - padding_column_ + column;
      const bool is_inside = y >= 0 && y < source_.height && x >= 0 && x < source_.width;
      const int64_t pixel = (place.image * source_.height + y) * source_.width + x;
      pixels[row][column] = is_inside ? source + pixel * channels : zeros_.data();
    }
  }
  for (int64_t c = 0; c < channels; c += kLanes) {
    Four columns[4];
#pragma GCC unroll 4
    for (int column = 0; column < 4; ++column) {
      columns[column] = TimesB(Load(pixels[0][column] + c), Load(pixels[1][column] + c),
                               Load(pixels[2][column] + c), Load(pixels[3][column] + c));
    }
#pragma GCC unroll 4
    for (int row = 0; row < 4; ++row) {
      const Four all =
          TimesB(columns[0].x[row], columns[1].x[row], columns[2].x[row], columns[3].x[row]);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) _mm256_storeu_ps(to + c + (row * 4 + i) * plane, all.x[i]);
    }
  }
}

template <typename T>
CONVOY_AVX2 void Winograd<T>::TransformGradient(const T* gradient, int64_t tile, float* to,
                                                int64_t plane) const {
  const Place place = PlaceOf(tile);
  const int64_t channels = result_.channels;
  const T* pixels[2][2];
  for (int row = 0; row < 2; ++row) {
    for (int column = 0; column < 2; ++column) {
      const int64_t y = place.row + row, x = place.column + column;
      const int64_t pixel = (place.image * result_.height + y) * result_.width + x;
      const bool is_inside = y < result_.height && x < result_.width;
      pixels[row][column] = is_inside ? gradient + pixel * channels : zeros_.data();
    }
  }
  for (int64_t c = 0; c < channels; c += kLanes) {
    const Four left = TimesA(Load(pixels[0][0] + c), Load(pixels[1][0] + c));
    const Four right = TimesA(Load(pixels[0][1] + c), Load(pixels[1][1] + c));
#pragma GCC unroll 4
    for (int row = 0; row < 4; ++row) {
      const Four all = TimesA(left.x[row], right.x[row]);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) _mm256_storeu_ps(to + c + (row * 4 + i) * plane, all.x[i]);
    }
  }
}

template <typename T>
CONVOY_AVX2 void Winograd<T>::WriteResult(const Products& products, int64_t tile,
                                          const Epilogue& epilogue, T* result) const {
  const float *const scale = epilogue.scale, *const bias = epilogue.bias;
  const T* const addend = epilogue.addend;
  const Place place = PlaceOf(tile);
  const int64_t channels = result_.channels;
  const int64_t pixel = (place.image * result_.height + place.row) * result_.width + place.column;
  const int rows = place.row + 1 < result_.height ? 2 : 1;
  const int columns = place.column + 1 < result_.width ? 2 : 1;
  const int64_t plane = products.plane;
  for (int64_t k = 0; k < products.width; k += kLanes) {
    const int64_t c = products.first + k;
    Two sums[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const float* const at = products.data + k + i * plane;
      sums[i] = TimesAt(_mm256_loadu_ps(at), _mm256_loadu_ps(at + 4 * plane),
                        _mm256_loadu_ps(at + 8 * plane), _mm256_loadu_ps(at + 12 * plane));
    }
    for (int row = 0; row < rows; ++row) {
      const Two all = TimesAt(sums[0].x[row], sums[1].x[row], sums[2].x[row], sums[3].x[row]);
      for (int column = 0; column < columns; ++column) {
        const int64_t at = (pixel + row * result_.width + column) * channels + c;
        Vector value = all.x[column];
        if (scale) value = _mm256_mul_ps(value, _mm256_loadu_ps(scale + c));
        if (bias) value = _mm256_add_ps(value, _mm256_loadu_ps(bias + c));
        if (addend) value = _mm256_add_ps(value, Load(addend + at));
        if (rectifies_) value = Rectify(value);
        Store(value, result + at);
      }
    }
  }
}

// Writes the gradient of the weights of one channel in, from planes x (channels in) x (channels
// out).
template <typename T>
CONVOY_AVX2 void Winograd<T>::WriteWeights(const float* from, int64_t in, T* weights) const {
  const int64_t out = result_.channels, plane = source_.channels * out;
  for (int64_t k = 0; k < out; k += kLanes) {
    Three sums[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const float* const at = from + in * out + k + i * plane;
      sums[i] = TimesGt(_mm256_loadu_ps(at), _mm256_loadu_ps(at + 4 * plane),
                        _mm256_loadu_ps(at + 8 * plane), _mm256_loadu_ps(at + 12 * plane));
    }
#pragma GCC unroll 4
    for (int row = 0; row < 3; ++row) {
      const Three all = TimesGt(sums[0].x[row], sums[1].x[row], sums[2].x[row], sums[3].x[row]);
#pragma GCC unroll 4
      for (int column = 0; column < 3; ++column) {
        T* const to = weights + row * steps_.row + column * steps_.column + in * steps_.in +
                      k * steps_.out;
        if (steps_.out == 1) {
          Store(all.x[column], to);
          continue;
        }
        T values[kLanes];
        Store(all.x[column], values);
        for (int i = 0; i < kLanes; ++i) to[i * steps_.out] = values[i];
      }
    }
  }
}

template <typename T>
int64_t Winograd<T>::Parts() const {
  const int64_t products = kPlanes * tiles_ * source_.channels * result_.channels;
  return std::clamp<int64_t>(products / kProductsPerThread, 1, std::min(threads_, tiles_));
}

// Size of the largest block if the largest part has this many tiles: blocks have about the same
// size, near the preferred one.
template <typename T>
int64_t Winograd<T>::BlockOf(int64_t tiles) const {
  const int64_t blocks = std::max<int64_t>(1, (tiles + block_ / 2) / block_);
  return (tiles + blocks - 1) / blocks;
}

// Calls `work(tiles)` for each block of a range of tiles, with at most `block` tiles.
template <typename T>
template <typename Work>
void Winograd<T>::ForBlocks(Range tiles, int64_t block, const Work& work) const {
  const int64_t count = tiles.last - tiles.first, blocks = (count + block - 1) / block;
  for (int64_t i = 0; i < blocks; ++i) {
    work(Range{tiles.first + count * i / blocks, tiles.first + count * (i + 1) / blocks});
  }
}

template <typename T>
void Winograd<T>::Run(const Arrays& arrays, Workspaces& workspaces,
                      xla::ffi::ThreadPool& pool) const {
  const T* const source = As<T>(arrays.source);
  T* const destination = As<T>(arrays.destination);
  if (kind_ == Kind::kBackwardWeights) {
    return SumWeights(source, destination, As<T>(arrays.weights), workspaces, pool);
  }
  if (kind_ == Kind::kInference) {
    const Epilogue epilogue = {As<float>(arrays.scale), As<float>(arrays.bias),
                               As<T>(arrays.addend)};
    return Convolve(source, As<float>(arrays.weights), destination, epilogue, workspaces, pool);
  }
  const auto packed = workspaces.Acquire(packed_bytes());
  const int64_t columns = result_.channels / kColumns, parts = std::min(Parts(), columns);
  ParallelFor(pool, parts, [&](int64_t part) {
    TransformWeights(As<T>(arrays.weights), Share(columns, part, parts), As<float>(packed.data()));
  });
  Convolve(source, As<float>(packed.data()), destination, {}, workspaces, pool);
}

template <typename T>
void Winograd<T>::Convolve(const T* source, const float* packed, T* result,
                           const Epilogue& epilogue, Workspaces& workspaces,
                           xla::ffi::ThreadPool& pool) const {
  const int64_t in = source_.channels, columns = result_.channels / kColumns;
  const int64_t threads = Parts();
  // Each part reads all weights for some tiles, or, if there are few tiles, some weights for all.
  const bool by_columns = tiles_ < kSmallBlock * threads && columns >= threads;
  const int64_t most = threads == 1 ? 1 : kPartsPerThread * threads;
  const int64_t parts =
      by_columns ? threads : std::clamp(tiles_ / (2 * block_), threads, most);
  const int64_t block = BlockOf(by_columns ? tiles_ : (tiles_ + parts - 1) / parts);
  const int64_t plane_in = block * in + kBetweenPlanes;
  const auto afterwards = kind_ == Kind::kInference ? Afterwards::kStay : Afterwards::kLeave;
  ParallelFor(pool, parts, threads, afterwards, [&](int64_t part) {
    const Range tiles = by_columns ? Range{0, tiles_} : Share(tiles_, part, parts);
    const Range out = by_columns ? Share(columns, part, parts) : Range{0, columns};
    const int64_t first_out = out.first * kColumns, width = out.last * kColumns - first_out;
    const int64_t plane_out = block * width + kBetweenPlanes;
    const auto workspace =
        workspaces.Acquire(kPlanes * (plane_in + plane_out) * sizeof(float));
    float* const transformed = As<float>(workspace.data());
    float* const products = transformed + kPlanes * plane_in;
    ForBlocks(tiles, block, [&](Range these) {
      const int64_t count = these.last - these.first;
      for (int64_t i = 0; i < count; ++i) {
        TransformSource(source, these.first + i, transformed + i * in, plane_in);
      }
      for (int64_t plane = 0; plane < kPlanes; ++plane) {
        for (int64_t column = 0; column < width; column += kColumns) {
          const float* const weights = packed + (plane * result_.channels + first_out + column) * in;
          Multiply({transformed + plane * plane_in, in, 1},
                   {weights, kColumns, weights + in * kColumns}, count, in,
                   {products + plane * plane_out + column, width}, false);
        }
      }
      for (int64_t i = 0; i < count; ++i) {
        WriteResult({products + i * width, plane_out, first_out, width}, these.first + i, epilogue,
                    result);
      }
    });
  });
}

template <typename T>
void Winograd<T>::SumWeights(const T* source, const T* gradient, T* weights,
                             Workspaces& workspaces, xla::ffi::ThreadPool& pool) const {
  const int64_t in = source_.channels, out = result_.channels, size = kPlanes * in * out;
  const int64_t parts = Parts(), block = BlockOf((tiles_ + parts - 1) / parts);
  const int64_t plane_in = block * in + kBetweenPlanes, plane_out = block * out + kBetweenPlanes;
  const auto partial = workspaces.Acquire(parts * size * sizeof(float));
  float* const sums = As<float>(partial.data());
  ParallelFor(pool, parts, [&](int64_t part) {
    const auto workspace =
        workspaces.Acquire(kPlanes * (plane_in + plane_out) * sizeof(float));
    float* const transformed = As<float>(workspace.data());
    float* const gradients = transformed + kPlanes * plane_in;
    bool adds = false;
    ForBlocks(Share(tiles_, part, parts), block, [&](Range these) {
      const int64_t count = these.last - these.first;
      for (int64_t i = 0; i < count; ++i) {
        TransformSource(source, these.first + i, transformed + i * in, plane_in);
        TransformGradient(gradient, these.first + i, gradients + i * out, plane_out);
      }
      for (int64_t plane = 0; plane < kPlanes; ++plane) {
        for (int64_t column = 0; column < out; column += kColumns) {
          const float* const from = gradients + plane * plane_out + column;
          Multiply({transformed + plane * plane_in, 1, in}, {from, out, from}, in, count,
                   {sums + part * size + plane * in * out + column, out}, adds);
        }
      }
      adds = true;
    });
  });
  ParallelFor(pool, parts, [&](int64_t part) {
    const Range channels = Share(in, part, parts);
    for (int64_t i = channels.first; i < channels.last; ++i) {
      for (int64_t plane = 0; parts > 1 && plane < kPlanes; ++plane) {
        float* const sum = sums + (plane * in + i) * out;
        for (int64_t other = 1; other < parts; ++other) {
          for (int64_t k = 0; k < out; ++k) sum[k] += sum[other * size + k];
        }
      }
      WriteWeights(sums, i, weights);
    }
  });
}

template class Winograd<float>;
template class Winograd<Bfloat16>;
template class Winograd<Float16>;

}  // namespace convoy
