// Loops of batch normalisation and of sums by channel over the elements of some rows.
//
// Values by channel, and sums by channel, are arrays as long as the rows (`count`), in float32. Rows
// are stored as float, Bfloat16 or Float16; each result is computed in float32 and rounded once.
#pragma once

#include <cstdint>

#include "storage.h"

namespace convoy {

// sum += x
template <typename T>
void AddRows(const T* x, float* sum, int64_t count);

// sum += (x - mean)**2
template <typename T>
void AddSquares(const T* x, const float* mean, float* sum, int64_t count);

// y = x * scale + shift, plus `addend` if it is not null, and then a ReLU if `rectify`.
template <typename T>
void ScaleRows(const T* x, const float* scale, const float* shift, const T* addend, bool rectify,
               T* y, int64_t count);

// sum += dy, product += dy * (x - mean). If `rectified` is not null, dy counts where it is above 0.
template <typename T>
void AddProducts(const T* dy, const T* x, const float* mean, const T* rectified, float* sum,
                 float* product, int64_t count);

// dx = dy * a + x * b + c, with dy as above. The dy that counts is written to `passed` if neither
// that nor `rectified` is null.
template <typename T>
void CombineRows(const T* dy, const T* x, const float* a, const float* b, const float* c,
                 const T* rectified, T* dx, T* passed, int64_t count);

}  // namespace convoy
