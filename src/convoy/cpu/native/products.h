// Products of small matrices, with all sums in registers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "avx2.h"

namespace convoy {

// Of 16 registers, 12 hold sums; the rest one row of the right side, and a value of the left.
constexpr int64_t kRows = 6;
constexpr int64_t kColumns = 2 * kLanes;

// A matrix in memory, or its transpose: elements from one to the next along each axis.
struct Left {
  const float* data;
  int64_t row_step, depth_step;
};

struct Right {
  const float* data;
  int64_t depth_step;
};

struct Result {
  float* data;
  int64_t row_step;
};

template <int kCount>
CONVOY_AVX2 void MultiplyTile(Left left, Right right, int64_t depth, Result result, bool adds) {
  // Unrolled early, or GCC would keep the sums in memory.
  Vector sums[kCount][2];
#pragma GCC unroll 6
  for (int i = 0; i < kCount; ++i) {
    const float* const row = result.data + i * result.row_step;
    sums[i][0] = adds ? _mm256_loadu_ps(row) : _mm256_setzero_ps();
    sums[i][1] = adds ? _mm256_loadu_ps(row + kLanes) : _mm256_setzero_ps();
  }
  for (int64_t d = 0; d < depth; ++d) {
    const Vector low = _mm256_loadu_ps(right.data);
    const Vector high = _mm256_loadu_ps(right.data + kLanes);
#pragma GCC unroll 6
    for (int i = 0; i < kCount; ++i) {
      const Vector value = _mm256_broadcast_ss(left.data + i * left.row_step);
      sums[i][0] = _mm256_fmadd_ps(value, low, sums[i][0]);
      sums[i][1] = _mm256_fmadd_ps(value, high, sums[i][1]);
    }
    left.data += left.depth_step;
    right.data += right.depth_step;
  }
#pragma GCC unroll 6
  for (int i = 0; i < kCount; ++i) {
    float* const row = result.data + i * result.row_step;
    _mm256_storeu_ps(row, sums[i][0]);
    _mm256_storeu_ps(row + kLanes, sums[i][1]);
  }
}

// result = left * right, of 16 columns; or adds to what is there.
CONVOY_AVX2 inline void Multiply(Left left, const Right& right, int64_t rows, int64_t depth,
                                 Result result, bool adds) {
  const int64_t tiles = (rows + kRows - 1) / kRows;
  // Tiles of about the same height: one of a single row would take as long as three others.
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t count = rows * (tile + 1) / tiles - rows * tile / tiles;
    switch (count) {
      case 1: MultiplyTile<1>(left, right, depth, result, adds); break;
      case 2: MultiplyTile<2>(left, right, depth, result, adds); break;
      case 3: MultiplyTile<3>(left, right, depth, result, adds); break;
      case 4: MultiplyTile<4>(left, right, depth, result, adds); break;
      case 5: MultiplyTile<5>(left, right, depth, result, adds); break;
      default: MultiplyTile<6>(left, right, depth, result, adds); break;
    }
    left.data += count * left.row_step;
    result.data += count * result.row_step;
  }
}

}  // namespace convoy
