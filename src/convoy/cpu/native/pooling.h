// Max and sum pooling over up to three spatial axes, and the gradient of max pooling.
#pragma once

#include <cstddef>
#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace convoy {

// A row-major array (outer, depth, height, width, inner), pooled over the three axes in the middle.
// Channels last leave the channels in `inner`, where the loops are vectorised; channels first leave
// them in `outer`. Missing axes have size 1.
struct Pooling {
  static constexpr int kAxes = 3;
  int64_t outer, inner;
  int64_t size[kAxes];    // of the operand
  int64_t pooled[kAxes];  // of the result
  int64_t window[kAxes], stride[kAxes], dilation[kAxes], padding[kAxes];

  // Throws std::invalid_argument where the array has another length than `pooling.py` writes.
  static Pooling Parse(const int64_t* description, size_t size);

  int64_t operand_positions() const { return size[0] * size[1] * size[2]; }
  int64_t pooled_positions() const { return pooled[0] * pooled[1] * pooled[2]; }
};

// Arrays are stored as float, Bfloat16 or Float16. Sums are in float32.
template <typename T>
void MaxPool(const Pooling& pooling, const T* operand, T* result, int64_t threads,
             xla::ffi::ThreadPool& pool);

template <typename T>
void SumPool(const Pooling& pooling, const T* operand, T* result, int64_t threads,
             xla::ffi::ThreadPool& pool);

// Adds each element of `source` to the position of its window's maximum (the first, if there are
// several), and writes zeros elsewhere.
template <typename T>
void MaxPoolGradient(const Pooling& pooling, const T* source, const T* operand, T* result,
                     int64_t threads, xla::ffi::ThreadPool& pool);

}  // namespace convoy
