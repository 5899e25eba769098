// Conversion of arrays between float32 and 16-bit types, with and without vector instructions.
#include "storage.h"

namespace convoy {
namespace {

bool HasConversions() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return has;
}

template <typename To, typename From>
To Cast(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &value, sizeof(to));
  return to;
}

void FromFloat(float value, Bfloat16* to) {
  const uint32_t bits = Cast<uint32_t>(value), upper = bits >> 16;
  const bool is_nan = value != value;
  to->bits = static_cast<uint16_t>(is_nan ? upper | 0x40 : (bits + 0x7fff + (upper & 1)) >> 16);
}

void FromFloat(float value, Float16* to) {
  const uint32_t bits = Cast<uint32_t>(value), sign = bits >> 16 & 0x8000;
  uint32_t size = bits & 0x7fffffff;
  if (size > 0x7f800000) {  // NaN
    size = 0x7e00 | (size >> 13 & 0x3ff);
  } else if (size >= 0x477ff000) {  // 65520, which lies between the largest number and infinity
    size = 0x7c00;
  } else if (size < 0x38800000) {  // below the smallest normal number, 2**-14
    // Between 0.5 and 1 numbers are 2**-24 apart, as float16's smallest ones are: the sum rounds.
    size = Cast<uint32_t>(Cast<float>(size) + 0.5f) - Cast<uint32_t>(0.5f);
  } else {
    size = (size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13;
  }
  to->bits = static_cast<uint16_t>(sign | size);
}

template <typename T>
CONVOY_AVX2 int64_t WidenEights(const T* from, float* to, int64_t count) {
  int64_t at = 0;
  for (; at + kLanes <= count; at += kLanes) _mm256_storeu_ps(to + at, Load(from + at));
  return at;
}

template <typename T>
CONVOY_AVX2 int64_t NarrowEights(const float* from, T* to, int64_t count) {
  int64_t at = 0;
  for (; at + kLanes <= count; at += kLanes) Store(_mm256_loadu_ps(from + at), to + at);
  return at;
}

template <typename T>
void WidenAll(const T* from, float* to, int64_t count) {
  int64_t at = HasConversions() ? WidenEights(from, to, count) : 0;
  for (; at < count; ++at) to[at] = ToFloat(from[at]);
}

template <typename T>
void NarrowAll(const float* from, T* to, int64_t count) {
  int64_t at = HasConversions() ? NarrowEights(from, to, count) : 0;
  for (; at < count; ++at) FromFloat(from[at], to + at);
}

}  // namespace

float ToFloat(Bfloat16 value) { return Cast<float>(uint32_t{value.bits} << 16); }

float ToFloat(Float16 value) {
  const uint32_t sign = (value.bits & 0x8000u) << 16, size = value.bits & 0x7fffu;
  if (size >= 0x7c00) return Cast<float>(sign | 0x7f800000 | (size & 0x3ff) << 13);
  if (size >= 0x400) return Cast<float>(sign | ((size << 13) + (112u << 23)));
  // A multiple of 2**-24. XLA's threads take subnormal numbers for zero, so the bits of one must not
  // be read as float32.
  const float small = static_cast<float>(size) / (1 << 24);
  return sign ? -small : small;
}

void Widen(const Bfloat16* from, float* to, int64_t count) { WidenAll(from, to, count); }
void Widen(const Float16* from, float* to, int64_t count) { WidenAll(from, to, count); }
void Narrow(const float* from, Bfloat16* to, int64_t count) { NarrowAll(from, to, count); }
void Narrow(const float* from, Float16* to, int64_t count) { NarrowAll(from, to, count); }

}  // namespace convoy
