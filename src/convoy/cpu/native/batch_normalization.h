// Batch normalisation of arrays (rows, channels), with the addition and the ReLU that follow it.
#pragma once

#include <cstdint>

#include "row_parts.h"
#include "storage.h"
#include "xla/ffi/api/ffi.h"

namespace convoy {

// Arrays of rows are stored as float, Bfloat16 or Float16; values by channel are always float.

// Mean and variance of each channel.
template <typename T>
void Moments(const Rows& shape, const T* x, float* mean, float* variance,
             xla::ffi::ThreadPool& pool);

// y = x * scale + shift by channel, plus `addend` if it is not null, and then a ReLU if `rectify`.
template <typename T>
void Affine(const Rows& shape, const T* x, const float* scale, const float* shift,
            const T* addend, bool rectify, T* y, xla::ffi::ThreadPool& pool);

// By channel: the sum of the gradient `dy`, and the sum of its products with x - mean. If
// `rectified`, the ReLU's output, is not null, only elements where it is above 0 count.
template <typename T>
void GradientSums(const Rows& shape, const T* dy, const T* x, const float* mean,
                  const T* rectified, float* sum, float* product,
                  xla::ffi::ThreadPool& pool);

// dx = dy * a + x * b + c by channel, where dy counts as 0 unless `rectified` is above 0. The dy
// that counts is written to `passed` if that is not null.
template <typename T>
void InputGradient(const Rows& shape, const T* dy, const T* x, const float* a, const float* b,
                   const float* c, const T* rectified, T* dx, T* passed,
                   xla::ffi::ThreadPool& pool);

}  // namespace convoy
