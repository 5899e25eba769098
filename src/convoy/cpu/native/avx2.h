// Marks functions that are compiled for AVX2, whatever the rest of the library is compiled for.
#pragma once

#include <immintrin.h>

#define CONVOY_AVX2 __attribute__((target("avx2,fma")))

namespace convoy {

using Vector = __m256;
constexpr int64_t kLanes = 8;

}  // namespace convoy
