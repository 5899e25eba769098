#include "pointwise.h"

#include <algorithm>
#include <stdexcept>

namespace convoy {
namespace {

using dnnl::memory;

// Up to this number of pixels, a product takes less time than oneDNN's convolution: 0.5 to 0.9 of
// it on Zen 4, in bfloat16.
constexpr int64_t kFewPixels = 2048;

bool AreAll(const memory::dims& sizes, int64_t value) {
  return std::all_of(sizes.begin(), sizes.end(), [=](int64_t size) { return size == value; });
}

int64_t PixelsOf(const Convolution& it) {
  int64_t pixels = it.src[0];
  for (size_t axis = 2; axis < it.src.size(); ++axis) pixels *= it.src[axis];
  return pixels;
}

// The two axes that a tensor of pixels or weights has as a matrix.
ProductShape::Strides Matrix(int64_t row, int64_t column) { return {0, 0, row, column}; }

ProductShape ShapeOf(const Convolution& it) {
  const int64_t pixels = PixelsOf(it), out = it.weights[0], in = it.weights[1];
  const int64_t w_out = it.weights_strides[0], w_in = it.weights_strides[1];
  const auto source = Matrix(in, 1), destination = Matrix(out, 1);
  switch (it.kind) {
    case Kind::kForward:
      return {it.type, {1, 1}, pixels, in, out, source, Matrix(w_in, w_out), destination};
    case Kind::kBackwardData:
      return {it.type, {1, 1}, pixels, out, in, destination, Matrix(w_out, w_in), source};
    case Kind::kBackwardWeights:
      return {it.type, {1, 1}, in, pixels, out, Matrix(1, in), destination, Matrix(w_in, w_out)};
    default:
      throw std::invalid_argument("not a convolution of training");
  }
}

}  // namespace

bool Pointwise::Takes(const Convolution& it) {
  if (it.grouped || it.kind == Kind::kInference) return false;
  const memory::dims kernel(it.weights.begin() + 2, it.weights.end());
  if (!AreAll(kernel, 1) || !AreAll(it.strides, 1) || !AreAll(it.padding_low, 0) ||
      !AreAll(it.padding_high, 0) || !IsDenseChannelsLast(it.src, it.src_strides) ||
      !IsDenseChannelsLast(it.dst, it.dst_strides)) {
    return false;
  }
  // With fewer channels out than in, the gradient's product has short rows.
  const bool has_long_rows = it.weights[0] >= it.weights[1];
  return PixelsOf(it) <= kFewPixels || (it.kind == Kind::kBackwardWeights && has_long_rows);
}

Pointwise::Pointwise(const Convolution& it, int64_t threads)
    : kind_(it.kind), product_(ShapeOf(it), threads) {}

void Pointwise::Run(const Arrays& arrays, Workspaces& workspaces,
                    xla::ffi::ThreadPool& pool) const {
  switch (kind_) {
    case Kind::kForward:
      return product_.Run(arrays.source, arrays.weights, arrays.destination, workspaces, pool);
    case Kind::kBackwardData:
      return product_.Run(arrays.destination, arrays.weights, arrays.source, workspaces, pool);
    default:
      return product_.Run(arrays.source, arrays.destination, arrays.weights, workspaces, pool);
  }
}

}  // namespace convoy
