// Convolutions of 16-bit arrays by oneDNN's primitives for float32.
#pragma once

#include <cstdint>
#include <memory>

#include "execution.h"
#include "parallel.h"
#include "primitive.h"
#include "storage.h"

namespace convoy {

// For CPUs whose instructions do not compute with the type. Weights are converted once, and
// activations a few images at a time, so that their copies in float32 stay in the cache:
//
//     source (T)  --Widen-->  some images  --primitive-->  some results  --Narrow-->  destination
//
// The gradient of the weights is summed in float32 over all blocks of images and rounded once.
template <typename T>
class Widened : public Execution {
 public:
  // Throws dnnl::error if oneDNN has no fast implementation for float32.
  Widened(const Convolution& convolution, int64_t threads);

  void Run(const Arrays& arrays, Workspaces& workspaces,
           xla::ffi::ThreadPool& pool) const override;
  void Pack(char* weights, char* packed) const override;
  size_t packed_bytes() const override { return primitive_->weights_bytes(); }
  const char* implementation() const override { return name_; }

 private:
  int64_t BlockOf(const Convolution& convolution) const;
  void Compute(const Arrays& arrays, char* packed, Range blocks, Workspaces& workspaces) const;
  void Finish(const Arrays& arrays, int64_t first, float* results) const;
  void SumWeights(const Arrays& arrays, Range blocks, float* sum, Workspaces& workspaces) const;
  void SumOverBlocks(const Arrays& arrays, Workspaces& workspaces,
                     xla::ffi::ThreadPool& pool) const;

  Kind kind_;
  int64_t threads_, omp_threads_;
  int64_t block_, blocks_;                      // images in a block, and number of blocks
  int64_t source_size_, destination_size_;      // elements of a block
  int64_t weights_size_, channels_;             // elements of the weights; channels out
  bool rectifies_;
  std::unique_ptr<const Primitive> primitive_;  // for a block, in float32
  const char* name_;
};

}  // namespace convoy
