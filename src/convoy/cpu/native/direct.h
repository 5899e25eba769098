// Convolutions of inference by direct products, for any kernel, stride, dilation and rank.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "execution.h"
#include "parallel.h"

namespace convoy {

// Each tile of a few pixels and 16 channels is summed in registers. oneDNN's kernels would divide a
// single image among OpenMP's threads, which have to be woken; this divides it among XLA's.
class Direct : public Execution {
 public:
  // Whether this implementation can run a convolution of float32 on this machine.
  static bool Takes(const Convolution& convolution);

  Direct(const Convolution& convolution, int64_t threads);

  void Run(const Arrays& arrays, Workspaces& workspaces,
           xla::ffi::ThreadPool& pool) const override;
  void Pack(char* weights, char* packed) const override;
  size_t packed_bytes() const override;
  const char* implementation() const override;

 private:
  // Depth, height and width; with fewer spatial axes, the first ones are 1.
  using Sizes = std::array<int64_t, 3>;

  void Gather(const float* source, int64_t pixel, int64_t step, const float** rows) const;
  bool IsInside(const Sizes& corner, const Sizes& tap) const;
  void Convolve(const float* source, const float* packed, const float* bias, const float* addend,
                float* result, Range pixels, Range columns, Workspaces& workspaces) const;

  int64_t threads_, in_, out_, taps_, pixels_, images_;
  Sizes source_, result_, kernel_, strides_, dilations_, padding_;
  int64_t weights_in_step_, weights_out_step_;
  // By tap: offset of its weights, and offset of what it reads from what the first tap reads.
  std::vector<int64_t> weights_at_, source_at_;
  std::vector<Sizes> taps_at_;
  bool rectifies_;
  std::vector<float> zeros_;
};

}  // namespace convoy
