// Vectors of sixteen numbers, read from and written to arrays of any stored type, for AVX-512.
//
// `lanes` marks the elements that exist. With `kFull` all sixteen do: masked stores are slow on some
// CPUs, so that loops use them for their last elements only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "avx512.h"
#include "storage.h"

// oneDNN's instruction set avx512_core, and the same with instructions for bfloat16.
#define CONVOY_AVX512_CORE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define CONVOY_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace convoy {

constexpr int64_t kLongLanes = 16;

template <bool kFull>
CONVOY_AVX512_CORE inline LongVector LoadLong(const float* from, __mmask16 lanes) {
  return kFull ? _mm512_loadu_ps(from) : _mm512_maskz_loadu_ps(lanes, from);
}

template <bool kFull, typename T>
CONVOY_AVX512_CORE inline __m256i LoadBits(const T* from, __mmask16 lanes) {
  return kFull ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))
               : _mm256_maskz_loadu_epi16(lanes, from);
}

template <bool kFull>
CONVOY_AVX512_CORE inline LongVector LoadLong(const Bfloat16* from, __mmask16 lanes) {
  const __m512i bits = _mm512_cvtepu16_epi32(LoadBits<kFull>(from, lanes));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

template <bool kFull>
CONVOY_AVX512_CORE inline LongVector LoadLong(const Float16* from, __mmask16 lanes) {
  return _mm512_cvtph_ps(LoadBits<kFull>(from, lanes));
}

template <bool kFull>
CONVOY_AVX512_CORE inline void StoreLong(LongVector value, float* to, __mmask16 lanes) {
  if (kFull) {
    _mm512_storeu_ps(to, value);
  } else {
    _mm512_mask_storeu_ps(to, lanes, value);
  }
}

template <bool kFull, typename T>
CONVOY_AVX512_CORE inline void StoreBits(__m256i bits, T* to, __mmask16 lanes) {
  if (kFull) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits);
  } else {
    _mm256_mask_storeu_epi16(to, lanes, bits);
  }
}

// The instruction rounds to nearest, ties to even, and takes subnormal numbers for zero.
template <bool kFull>
CONVOY_AVX512_BF16 inline void StoreLong(LongVector value, Bfloat16* to, __mmask16 lanes) {
  const __m256bh rounded = _mm512_cvtneps_pbh(value);
  __m256i bits;
  std::memcpy(&bits, &rounded, sizeof(bits));
  StoreBits<kFull>(bits, to, lanes);
}

template <bool kFull>
CONVOY_AVX512_CORE inline void StoreLong(LongVector value, Float16* to, __mmask16 lanes) {
  StoreBits<kFull>(_mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), to,
                   lanes);
}

// The first `count` lanes of a vector, of which there are fewer than sixteen.
inline __mmask16 FirstLanes(int64_t count) {
  return static_cast<__mmask16>((uint32_t{1} << count) - 1);
}

}  // namespace convoy
