// The description of one convolution, as the lowering rules in Python write it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dnnl.hpp"

namespace convoy {

enum class Kind : int64_t {
  kForward = 0,
  kBackwardData = 1,
  kBackwardWeights = 2,
  // Forward with a bias and packed weights, and with an addition and a ReLU that may follow.
  kInference = 3,
};

// Sizes and strides (in elements) of the tensors, in oneDNN's order of axes: batch, channels,
// spatial; for the weights group (only where there are several), out, in, spatial, with the
// channels of one group. `describe` in `convolution_lowering.py` writes it as one array of integers:
//
//     kind, type, number of spatial axes, grouped
//     sizes and strides of source, of weights, of destination
//     strides, dilations, padding before, padding behind: each by spatial axis
//     adds, rectifies: of inference only
struct Convolution {
  Kind kind;
  dnnl::memory::data_type type;
  bool grouped;
  dnnl::memory::dims src, src_strides;
  dnnl::memory::dims weights, weights_strides;
  dnnl::memory::dims dst, dst_strides;
  dnnl::memory::dims strides, dilations, padding_low, padding_high;
  // Of inference only: whether an array like the result is added to it, and whether a ReLU follows.
  bool adds = false, rectifies = false;

  // Throws std::invalid_argument if the array does not have the length that its head announces.
  static Convolution Parse(const int64_t* description, size_t size);
};

// Whether a tensor has the channels of a pixel next to each other, then the pixels, with no gaps.
bool IsDenseChannelsLast(const dnnl::memory::dims& sizes, const dnnl::memory::dims& strides);

}  // namespace convoy
