// Convolutions of inference as products of small matrices, without a transformed copy of the
// source.
//
// A block of pixels of the result is multiplied with 16 channels out at a time. The left matrix
// does not exist in memory: for each pixel and each tap of the kernel there is a pointer to the
// channels of the source pixel that the tap reads, or to zeros where it reads padding.
//
//                 taps x channels in                 16 channels out
//               +--------------------+              +---------------+
//     96 pixels |  rows[tap][pixel]  |   x    taps  |    packed     |   =   result
//               +--------------------+      x chan. +---------------+
//
// Channels in are cut into pieces of at most 256, so that a piece of the packed weights stays in
// the first-level cache while the block's pixels pass by.
#include "direct.h"

#include <algorithm>

#include "avx2.h"
#include "instruction_set.h"
#include "products.h"

namespace convoy {
namespace {

// The weights that the tiles of a block share stay in the first-level cache, the pixels of the
// source that they read in the second-level cache.
constexpr int64_t kDepth = 256;
constexpr int64_t kBlock = 96;
// Minimum number of products in a part of the work, and maximum number of parts per thread.
constexpr int64_t kProductsPerPart = 1 << 20;
constexpr int64_t kPartsPerThread = 8;

float* Floats(char* bytes) { return reinterpret_cast<float*>(bytes); }

template <typename Sizes>
Sizes Last(const dnnl::memory::dims& from, size_t skipped, int64_t missing) {
  Sizes sizes;
  sizes.fill(missing);
  std::copy(from.begin() + skipped, from.end(), sizes.end() - (from.size() - skipped));
  return sizes;
}

}  // namespace

bool Direct::Takes(const Convolution& it) {
  return it.kind == Kind::kInference && !it.grouped && it.dst[1] % kColumns == 0 &&
         IsDenseChannelsLast(it.src, it.src_strides) &&
         IsDenseChannelsLast(it.dst, it.dst_strides) && ComputesAvx2AtOnce();
}

Direct::Direct(const Convolution& it, int64_t threads)
    : threads_(threads),
      in_(it.src[1]),
      out_(it.dst[1]),
      images_(it.src[0]),
      source_(Last<Sizes>(it.src, 2, 1)),
      result_(Last<Sizes>(it.dst, 2, 1)),
      kernel_(Last<Sizes>(it.weights, 2, 1)),
      strides_(Last<Sizes>(it.strides, 0, 1)),
      dilations_(Last<Sizes>(it.dilations, 0, 0)),
      padding_(Last<Sizes>(it.padding_low, 0, 0)),
      weights_in_step_(it.weights_strides[1]),
      weights_out_step_(it.weights_strides[0]),
      rectifies_(it.rectifies),
      zeros_(in_, 0.0f) {
  const Sizes steps = Last<Sizes>(it.weights_strides, 2, 0);
  for (int64_t z = 0; z < kernel_[0]; ++z) {
    for (int64_t y = 0; y < kernel_[1]; ++y) {
      for (int64_t x = 0; x < kernel_[2]; ++x) {
        weights_at_.push_back(z * steps[0] + y * steps[1] + x * steps[2]);
        const Sizes at = {z * (dilations_[0] + 1), y * (dilations_[1] + 1),
                          x * (dilations_[2] + 1)};
        taps_at_.push_back(at);
        source_at_.push_back(((at[0] * source_[1] + at[1]) * source_[2] + at[2]) * in_);
      }
    }
  }
  taps_ = static_cast<int64_t>(weights_at_.size());
  pixels_ = images_ * result_[0] * result_[1] * result_[2];
}

const char* Direct::implementation() const {
  return TakesAvx512() ? "direct:avx512" : "direct:avx2";
}

size_t Direct::packed_bytes() const { return taps_ * in_ * out_ * sizeof(float); }

// Into (columns of 16 channels out) x taps x (channels in) x 16.
void Direct::Pack(char* weights, char* packed) const {
  const float* const from = Floats(weights);
  float* to = Floats(packed);
  for (int64_t column = 0; column < out_; column += kColumns) {
    for (int64_t tap = 0; tap < taps_; ++tap) {
      for (int64_t i = 0; i < in_; ++i) {
        for (int64_t k = column; k < column + kColumns; ++k) {
          *to++ = from[weights_at_[tap] + i * weights_in_step_ + k * weights_out_step_];
        }
      }
    }
  }
}

// Writes the pointers to what each tap reads for a pixel of the result, `step` pointers apart.
void Direct::Gather(const float* source, int64_t pixel, int64_t step, const float** rows) const {
  Sizes at;
  bool is_inside = true;
  for (int axis = 2; axis >= 0; --axis) {
    at[axis] = pixel % result_[axis] * strides_[axis] - padding_[axis];
    pixel /= result_[axis];
    const int64_t last = at[axis] + (kernel_[axis] - 1) * (dilations_[axis] + 1);
    is_inside = is_inside && at[axis] >= 0 && last < source_[axis];
  }
  const int64_t corner =
      (((pixel * source_[0] + at[0]) * source_[1] + at[1]) * source_[2] + at[2]) * in_;
  for (int64_t tap = 0; tap < taps_; ++tap) {
    const bool reads = is_inside || IsInside(at, taps_at_[tap]);
    rows[tap * step] = reads ? source + (corner + source_at_[tap]) : zeros_.data();
  }
}

bool Direct::IsInside(const Sizes& corner, const Sizes& tap) const {
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t at = corner[axis] + tap[axis];
    if (at < 0 || at >= source_[axis]) return false;
  }
  return true;
}

void Direct::Run(const Arrays& arrays, Workspaces& workspaces,
                 xla::ffi::ThreadPool& pool) const {
  const int64_t columns = out_ / kColumns, products = pixels_ * taps_ * in_ * out_;
  // Each part reads all of the source or all of the weights: the smaller one is chosen.
  const int64_t read = images_ * source_[0] * source_[1] * source_[2] * in_;
  const bool by_columns = columns >= threads_ && read < taps_ * in_ * out_;
  const int64_t most = by_columns ? columns : std::max(pixels_ / kBlock, threads_);
  const int64_t wanted = threads_ == 1 ? 1 : std::min(most, kPartsPerThread * threads_);
  const int64_t parts = std::clamp<int64_t>(products / kProductsPerPart, 1, wanted);
  ParallelFor(pool, parts, threads_, Afterwards::kStay, [&](int64_t part) {
    Convolve(Floats(arrays.source), Floats(arrays.weights), Floats(arrays.bias),
             Floats(arrays.addend), Floats(arrays.destination),
             by_columns ? Range{0, pixels_} : Share(pixels_, part, parts),
             by_columns ? Share(columns, part, parts) : Range{0, columns}, workspaces);
  });
}

void Direct::Convolve(const float* source, const float* packed, const float* bias,
                      const float* addend, float* result, Range pixels, Range columns,
                      Workspaces& workspaces) const {
  const auto workspace = workspaces.Acquire(taps_ * kBlock * sizeof(const float*));
  const auto rows = reinterpret_cast<const float**>(workspace.data());
  const int64_t count = pixels.last - pixels.first;
  const int64_t blocks = (count + kBlock - 1) / kBlock;
  // Few channels: several taps at a time. Many channels: each tap in several pieces.
  const int64_t taps_at_once = std::max<int64_t>(1, kDepth / in_);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = pixels.first + count * block / blocks;
    const int64_t height = pixels.first + count * (block + 1) / blocks - first;
    for (int64_t i = 0; i < height; ++i) Gather(source, first + i, kBlock, rows + i);
    for (int64_t tap = 0; tap < taps_; tap += taps_at_once) {
      const int64_t taps = std::min(taps_at_once, taps_ - tap);
      for (int64_t in = 0; in < in_; in += kDepth) {
        const int64_t depth = std::min(kDepth, in_ - in);
        const bool is_first = tap == 0 && in == 0;
        const bool is_last = tap + taps == taps_ && in + depth == in_;
        for (int64_t column = columns.first; column < columns.last; ++column) {
          const int64_t to = first * out_ + column * kColumns;
          const float* const weights = packed + ((column * taps_ + tap) * in_ + in) * kColumns;
          const float* const next = weights + taps_ * in_ * kColumns;  // of the next column
          GatherAndMultiply(
              {rows + tap * kBlock, kBlock, taps, in, depth}, {weights, kColumns, next}, height,
              {result + to, out_},
              {is_first ? bias + column * kColumns : nullptr,
               is_last && addend ? addend + to : nullptr, is_last && rectifies_});
        }
      }
    }
  }
}

}  // namespace convoy
