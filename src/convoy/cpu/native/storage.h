// The types that arrays are stored in, and their conversion to float32, in which kernels compute.
//
// Kernels read 16-bit numbers a vector or a tile at a time, compute in float32, and round each
// result once, to the nearest number, ties to even. So conversions take place in registers or in
// the first-level cache, not in passes over memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "avx2.h"
#include "xla/ffi/api/ffi.h"

namespace convoy {

struct Bfloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

// One number.
inline float ToFloat(float value) { return value; }
float ToFloat(Bfloat16 value);
float ToFloat(Float16 value);

// Arrays of any length.
void Widen(const Bfloat16* from, float* to, int64_t count);
void Widen(const Float16* from, float* to, int64_t count);
void Narrow(const float* from, Bfloat16* to, int64_t count);
void Narrow(const float* from, Float16* to, int64_t count);
inline void Widen(const float* from, float* to, int64_t count) {
  std::memcpy(to, from, count * sizeof(float));
}
inline void Narrow(const float* from, float* to, int64_t count) {
  std::memcpy(to, from, count * sizeof(float));
}

// Vectors of eight numbers.
CONVOY_AVX2 inline Vector Load(const float* from) { return _mm256_loadu_ps(from); }

CONVOY_AVX2 inline Vector Load(const Bfloat16* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

CONVOY_AVX2 inline Vector Load(const Float16* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

CONVOY_AVX2 inline void Store(Vector value, float* to) { _mm256_storeu_ps(to, value); }

CONVOY_AVX2 inline void Store(Vector value, Bfloat16* to) {
  // Half a unit is added, or one bit less if the last bit that stays is even. NaN would lose its
  // mantissa that way, so its upper half is kept, with a bit set that no carry reaches.
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i all = _mm256_blendv_epi8(rounded, quiet, is_nan);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(all, all), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
}

CONVOY_AVX2 inline void Store(Vector value, Float16* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// Room for a tile of an array in float32. Arrays of float32 are read and written where they are.
template <typename T>
class Tile {
 public:
  explicit Tile(int64_t count) : values_(std::is_same_v<T, float> ? 0 : count) {}

  const float* Read(const T* from, int64_t count) {
    if constexpr (std::is_same_v<T, float>) {
      return from;
    } else {
      Widen(from, values_.data(), count);
      return values_.data();
    }
  }

  // Where a tile of the result is computed, before `Write` stores it.
  float* Target(T* to) {
    if constexpr (std::is_same_v<T, float>) {
      return to;
    } else {
      return values_.data();
    }
  }

  void Write(T* to, int64_t count) {
    if constexpr (!std::is_same_v<T, float>) Narrow(values_.data(), to, count);
  }

 private:
  std::vector<float> values_;
};

// Calls `work` with a number of the type in which XLA stores an array.
template <typename Work>
void WithStorage(xla::ffi::DataType type, const Work& work) {
  switch (type) {
    case xla::ffi::DataType::F32:
      return work(float());
    case xla::ffi::DataType::BF16:
      return work(Bfloat16());
    case xla::ffi::DataType::F16:
      return work(Float16());
    default:
      throw std::invalid_argument("arrays must be float32, bfloat16 or float16");
  }
}

}  // namespace convoy
