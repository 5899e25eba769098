// Convolutions of inference, product by product.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "execution.h"
#include "parallel.h"

namespace convoy {

// Each tile of a few pixels and 16 channels is summed in registers. Unlike oneDNN's kernels on
// OpenMP's threads, it divides even a single image among XLA's own, which are awake already.
class Direct : public Execution {
 public:
  // Whether it can be done in this way on this machine.
  static bool Takes(const Convolution& convolution);

  Direct(const Convolution& convolution, int64_t threads);

  void Run(const Arrays& arrays, Workspaces& workspaces,
           xla::ffi::ThreadPool& pool) const override;
  void Pack(char* weights, char* packed) const override;
  size_t packed_bytes() const override;
  const char* implementation() const override;

 private:
  // Depth, height and width; of what has fewer, the first are one.
  using Sizes = std::array<int64_t, 3>;
  // Of the pixels of all images, or of columns of 16 channels.

  void Gather(const float* source, int64_t pixel, int64_t step, const float** rows) const;
  bool IsInside(const Sizes& corner, const Sizes& tap) const;
  void Convolve(const float* source, const float* packed, const float* bias, const float* addend,
                float* result, Range pixels, Range columns, Workspaces& workspaces) const;

  int64_t threads_, in_, out_, taps_, pixels_, images_;
  Sizes source_, result_, kernel_, strides_, dilations_, padding_;
  int64_t weights_in_step_, weights_out_step_;
  // By tap: where its weights begin, and where it reads, seen from the first one.
  std::vector<int64_t> weights_at_, source_at_;
  std::vector<Sizes> taps_at_;
  bool rectifies_;
  std::vector<float> zeros_;
};

}  // namespace convoy
