// Marks functions that are compiled for AVX-512, independently of the rest of the library.
#pragma once

#include <immintrin.h>

#define CONVOY_AVX512 __attribute__((target("avx512f")))

namespace convoy {

using LongVector = __m512;

// ReLU; NaN stays NaN.
CONVOY_AVX512 inline LongVector Rectify(LongVector value) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(value, _mm512_setzero_ps(), _CMP_NLT_UQ), value);
}

}  // namespace convoy
