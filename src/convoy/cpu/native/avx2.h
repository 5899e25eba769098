// Marks functions that are compiled for AVX2 and the instructions that come with it, independently
// of the rest of the library.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define CONVOY_AVX2 __attribute__((target("avx2,fma,f16c")))

namespace convoy {

using Vector = __m256;
constexpr int64_t kLanes = 8;

// ReLU. In this order of operands, NaN stays NaN.
CONVOY_AVX2 inline Vector Rectify(Vector value) {
  return _mm256_max_ps(_mm256_setzero_ps(), value);
}

}  // namespace convoy
