// Convolutions with kernels of one element, as matrix products.
#pragma once

#include "execution.h"
#include "matrix_product.h"

namespace convoy {

//     forward     destination[pixel, out]  =  source[pixel, in]  *  weights[in, out]
//     data        source[pixel, in]        =  destination[pixel, out]  *  weights^T[out, in]
//     weights     weights[in, out]         =  source^T[in, pixel]  *  destination[pixel, out]
//
// oneDNN's convolutions bring weights into a layout of their own in every call, which takes long
// where there are few pixels, and add up the gradients of weights of several threads.
class Pointwise : public Execution {
 public:
  static bool Takes(const Convolution& convolution);

  // Throws dnnl::error if oneDNN has no fast implementation.
  Pointwise(const Convolution& convolution, int64_t threads);

  void Run(const Arrays& arrays, Workspaces& workspaces,
           xla::ffi::ThreadPool& pool) const override;

  // Inference is left to others.
  void Pack(char*, char*) const override {}
  size_t packed_bytes() const override { return 0; }

  const char* implementation() const override { return product_.implementation(); }

 private:
  Kind kind_;
  MatrixProduct product_;
};

}  // namespace convoy
