// Batch normalisation of arrays (rows, channels), with the addition and the ReLU that follow it.
#pragma once

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace convoy {

struct Rows {
  int64_t rows, channels, threads;
};

// Mean and variance of each channel.
void Moments(const Rows& shape, const float* x, float* mean, float* variance,
             xla::ffi::ThreadPool& pool);

// y = x * scale + shift by channel, plus `addend` if it is not null, and then a ReLU if `rectify`.
void Affine(const Rows& shape, const float* x, const float* scale, const float* shift,
            const float* addend, bool rectify, float* y, xla::ffi::ThreadPool& pool);

// By channel: the sum of the gradient `dy`, and the sum of its products with x - mean. If
// `rectified`, the ReLU's output, is not null, only elements where it is above 0 count.
void GradientSums(const Rows& shape, const float* dy, const float* x, const float* mean,
                  const float* rectified, float* sum, float* product,
                  xla::ffi::ThreadPool& pool);

// dx = dy * a + x * b + c by channel, where dy counts as 0 unless `rectified` is above 0. The dy
// that counts is written to `passed` if that is not null.
void InputGradient(const Rows& shape, const float* dy, const float* x, const float* a,
                   const float* b, const float* c, const float* rectified, float* dx,
                   float* passed, xla::ffi::ThreadPool& pool);

}  // namespace convoy
