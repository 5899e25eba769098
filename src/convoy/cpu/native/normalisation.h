// Batch normalisation of arrays (rows, channels), and what follows it.
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

// y = x * scale + shift by channel, plus `addend` if it is not null, and if `rectify` not below 0.
void Affine(const Rows& shape, const float* x, const float* scale, const float* shift,
            const float* addend, bool rectify, float* y, xla::ffi::ThreadPool& pool);

// Of the gradient `dy`, where `rectified` (if it is not null) is above 0: its sum, and the sum of
// its products with x - mean, by channel.
void GradientSums(const Rows& shape, const float* dy, const float* x, const float* mean,
                  const float* rectified, float* sum, float* product,
                  xla::ffi::ThreadPool& pool);

// dx = dy * a + x * b + c by channel, where dy counts as 0 unless `rectified` is above 0. That dy is
// written to `passed` if it is not null.
void InputGradient(const Rows& shape, const float* dy, const float* x, const float* a,
                   const float* b, const float* c, const float* rectified, float* dx,
                   float* passed, xla::ffi::ThreadPool& pool);

}  // namespace convoy
