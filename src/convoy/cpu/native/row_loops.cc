// Loops of batch normalisation: one each for float32, which the compiler vectorises, and for 16 bits.
//
// In 16 bits, CPUs with instructions for bfloat16 convert in registers: 16 elements are loaded,
// computed and stored. Other CPUs convert a chunk in the first-level cache, and run the loop of
// float32 on it.
//
// Every combination of options has a loop of its own, because a condition inside of a loop keeps
// the compiler from vectorising it. The gradient of y = (x - mean) / deviation * gamma + beta with
// respect to x is a sum with three factors by channel, so that it needs one pass over dy and x.
// With S = sum(dy) and P = sum(dy * (x - mean)) over n rows:
//
//     dx = dy * a + x * b + c
//     a = gamma / deviation    b = -a * P / (n * deviation**2)    c = -a * S / n - b * mean
#include "row_loops.h"

#include <algorithm>
#include <type_traits>

#include "instruction_set.h"
#include "long_storage.h"
#include "vectorised.h"

namespace convoy {
namespace {

namespace single {

CONVOY_VECTORISED void Add(const float* __restrict x, float* __restrict sum, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += x[i];
}

CONVOY_VECTORISED void AddSquares(const float* __restrict x, const float* __restrict mean,
                                  float* __restrict sum, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float deviation = x[i] - mean[i];
    sum[i] += deviation * deviation;
  }
}

CONVOY_VECTORISED void Scale(const float* __restrict x, const float* __restrict scale,
                             const float* __restrict shift, float* __restrict y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * scale[i] + shift[i];
}

CONVOY_VECTORISED void ScaleRectify(const float* __restrict x, const float* __restrict scale,
                                    const float* __restrict shift, float* __restrict y,
                                    int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = x[i] * scale[i] + shift[i];
    y[i] = value < 0.0f ? 0.0f : value;  // NaN stays NaN
  }
}

CONVOY_VECTORISED void ScaleAdd(const float* __restrict x, const float* __restrict scale,
                                const float* __restrict shift, const float* __restrict addend,
                                float* __restrict y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * scale[i] + shift[i] + addend[i];
}

CONVOY_VECTORISED void ScaleAddRectify(const float* __restrict x, const float* __restrict scale,
                                       const float* __restrict shift,
                                       const float* __restrict addend, float* __restrict y,
                                       int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = x[i] * scale[i] + shift[i] + addend[i];
    y[i] = value < 0.0f ? 0.0f : value;
  }
}

CONVOY_VECTORISED void AddProducts(const float* __restrict dy, const float* __restrict x,
                                   const float* __restrict mean, float* __restrict sum,
                                   float* __restrict product, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    sum[i] += dy[i];
    product[i] += dy[i] * (x[i] - mean[i]);
  }
}

CONVOY_VECTORISED void AddPassedProducts(const float* __restrict dy, const float* __restrict x,
                                         const float* __restrict mean,
                                         const float* __restrict rectified, float* __restrict sum,
                                         float* __restrict product, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float gradient = dy[i];  // read in any case: a load under a condition is not vectorised
    const float passed = rectified[i] > 0.0f ? gradient : 0.0f;
    sum[i] += passed;
    product[i] += passed * (x[i] - mean[i]);
  }
}

CONVOY_VECTORISED void Combine(const float* __restrict dy, const float* __restrict x,
                               const float* __restrict a, const float* __restrict b,
                               const float* __restrict c, float* __restrict dx, int64_t count) {
  for (int64_t i = 0; i < count; ++i) dx[i] = dy[i] * a[i] + x[i] * b[i] + c[i];
}

CONVOY_VECTORISED void CombinePassed(const float* __restrict dy, const float* __restrict x,
                                     const float* __restrict a, const float* __restrict b,
                                     const float* __restrict c, const float* __restrict rectified,
                                     float* __restrict dx, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float gradient = dy[i];  // read in any case: a load under a condition is not vectorised
    const float passed = rectified[i] > 0.0f ? gradient : 0.0f;
    dx[i] = passed * a[i] + x[i] * b[i] + c[i];
  }
}

CONVOY_VECTORISED void CombineKeepPassed(const float* __restrict dy, const float* __restrict x,
                                         const float* __restrict a, const float* __restrict b,
                                         const float* __restrict c,
                                         const float* __restrict rectified, float* __restrict dx,
                                         float* __restrict kept, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float gradient = dy[i];  // read in any case: a load under a condition is not vectorised
    const float passed = rectified[i] > 0.0f ? gradient : 0.0f;
    kept[i] = passed;
    dx[i] = passed * a[i] + x[i] * b[i] + c[i];
  }
}

void ScaleRows(const float* x, const float* scale, const float* shift, const float* addend,
               bool rectify, float* y, int64_t count) {
  if (addend && rectify) {
    ScaleAddRectify(x, scale, shift, addend, y, count);
  } else if (addend) {
    ScaleAdd(x, scale, shift, addend, y, count);
  } else if (rectify) {
    ScaleRectify(x, scale, shift, y, count);
  } else {
    Scale(x, scale, shift, y, count);
  }
}

void AddRowProducts(const float* dy, const float* x, const float* mean, const float* rectified,
                 float* sum, float* product, int64_t count) {
  if (rectified) {
    AddPassedProducts(dy, x, mean, rectified, sum, product, count);
  } else {
    AddProducts(dy, x, mean, sum, product, count);
  }
}

void CombineRows(const float* dy, const float* x, const float* a, const float* b, const float* c,
                 const float* rectified, float* dx, float* passed, int64_t count) {
  if (!rectified) {
    Combine(dy, x, a, b, c, dx, count);
  } else if (!passed) {
    CombinePassed(dy, x, a, b, c, rectified, dx, count);
  } else {
    CombineKeepPassed(dy, x, a, b, c, rectified, dx, passed, count);
  }
}

}  // namespace single

// A loop in AVX-512 is a struct of pointers with a function for the vector at one place. It is
// passed by value, so that the pointers stay in registers.
template <typename Loop>
CONVOY_AVX512_BF16 void RunLong(Loop loop, int64_t count) {
  int64_t at = 0;
  for (; at + kLongLanes <= count; at += kLongLanes) loop.template At<true>(at, 0xffff);
  if (at < count) loop.template At<false>(at, FirstLanes(count - at));
}

template <typename T>
struct AddLoop {
  const T* x;
  float* sum;

  template <bool kFull>
  CONVOY_AVX512_BF16 void At(int64_t at, __mmask16 lanes) const {
    const LongVector total = LoadLong<kFull>(sum + at, lanes);
    StoreLong<kFull>(_mm512_add_ps(total, LoadLong<kFull>(x + at, lanes)), sum + at, lanes);
  }
};

template <typename T>
struct AddSquaresLoop {
  const T* x;
  const float* mean;
  float* sum;

  template <bool kFull>
  CONVOY_AVX512_BF16 void At(int64_t at, __mmask16 lanes) const {
    const LongVector deviation =
        _mm512_sub_ps(LoadLong<kFull>(x + at, lanes), LoadLong<kFull>(mean + at, lanes));
    const LongVector total = LoadLong<kFull>(sum + at, lanes);
    StoreLong<kFull>(_mm512_fmadd_ps(deviation, deviation, total), sum + at, lanes);
  }
};

template <typename T>
struct ScaleLoop {
  const T* x;
  const float *scale, *shift;
  const T* addend;
  bool rectify;
  T* y;

  template <bool kFull>
  CONVOY_AVX512_BF16 void At(int64_t at, __mmask16 lanes) const {
    LongVector value =
        _mm512_fmadd_ps(LoadLong<kFull>(x + at, lanes), LoadLong<kFull>(scale + at, lanes),
                        LoadLong<kFull>(shift + at, lanes));
    if (addend) value = _mm512_add_ps(value, LoadLong<kFull>(addend + at, lanes));
    if (rectify) value = Rectify(value);
    StoreLong<kFull>(value, y + at, lanes);
  }
};

// The gradient where the ReLU let it pass.
template <bool kFull, typename T>
CONVOY_AVX512_BF16 inline LongVector Passed(const T* dy, const T* rectified, __mmask16 lanes) {
  const LongVector gradient = LoadLong<kFull>(dy, lanes);
  if (!rectified) return gradient;
  const LongVector output = LoadLong<kFull>(rectified, lanes);
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(output, _mm512_setzero_ps(), _CMP_GT_OQ),
                             gradient);
}

template <typename T>
struct AddProductsLoop {
  const T *dy, *x;
  const float* mean;
  const T* rectified;
  float *sum, *product;

  template <bool kFull>
  CONVOY_AVX512_BF16 void At(int64_t at, __mmask16 lanes) const {
    const LongVector gradient = Passed<kFull>(dy + at, rectified ? rectified + at : nullptr, lanes);
    const LongVector deviation =
        _mm512_sub_ps(LoadLong<kFull>(x + at, lanes), LoadLong<kFull>(mean + at, lanes));
    const LongVector total = LoadLong<kFull>(sum + at, lanes);
    const LongVector products = LoadLong<kFull>(product + at, lanes);
    StoreLong<kFull>(_mm512_add_ps(total, gradient), sum + at, lanes);
    StoreLong<kFull>(_mm512_fmadd_ps(gradient, deviation, products), product + at, lanes);
  }
};

template <typename T>
struct CombineLoop {
  const T *dy, *x;
  const float *a, *b, *c;
  const T* rectified;
  T *dx, *passed;

  template <bool kFull>
  CONVOY_AVX512_BF16 void At(int64_t at, __mmask16 lanes) const {
    const LongVector gradient = Passed<kFull>(dy + at, rectified ? rectified + at : nullptr, lanes);
    const LongVector by_input =
        _mm512_fmadd_ps(LoadLong<kFull>(x + at, lanes), LoadLong<kFull>(b + at, lanes),
                        LoadLong<kFull>(c + at, lanes));
    const LongVector result =
        _mm512_fmadd_ps(gradient, LoadLong<kFull>(a + at, lanes), by_input);
    StoreLong<kFull>(result, dx + at, lanes);
    if (passed) StoreLong<kFull>(gradient, passed + at, lanes);
  }
};

// Whether rows of this type are computed by the loops in AVX-512.
template <typename T>
bool RunsLong() {
  static const bool has = HasBfloat16();
  return !std::is_same_v<T, float> && has;
}

// A part of some rows in float32, in the first-level cache.
constexpr int64_t kChunk = 256;

template <typename T>
struct Chunk {
  float values[kChunk];

  // Null if the array is missing.
  const float* Read(const T* from, int64_t at, int64_t count) {
    if (!from) return nullptr;
    Widen(from + at, values, count);
    return values;
  }
};

template <typename Work>
void ForChunks(int64_t count, const Work& work) {
  for (int64_t at = 0; at < count; at += kChunk) work(at, std::min(kChunk, count - at));
}

}  // namespace

template <typename T>
void AddRows(const T* x, float* sum, int64_t count) {
  if constexpr (std::is_same_v<T, float>) {
    single::Add(x, sum, count);
  } else {
    if (RunsLong<T>()) return RunLong(AddLoop<T>{x, sum}, count);
    Chunk<T> inputs;
    ForChunks(count, [&](int64_t at, int64_t n) {
      single::Add(inputs.Read(x, at, n), sum + at, n);
    });
  }
}

template <typename T>
void AddSquares(const T* x, const float* mean, float* sum, int64_t count) {
  if constexpr (std::is_same_v<T, float>) {
    single::AddSquares(x, mean, sum, count);
  } else {
    if (RunsLong<T>()) return RunLong(AddSquaresLoop<T>{x, mean, sum}, count);
    Chunk<T> inputs;
    ForChunks(count, [&](int64_t at, int64_t n) {
      single::AddSquares(inputs.Read(x, at, n), mean + at, sum + at, n);
    });
  }
}

template <typename T>
void ScaleRows(const T* x, const float* scale, const float* shift, const T* addend, bool rectify,
               T* y, int64_t count) {
  if constexpr (std::is_same_v<T, float>) {
    single::ScaleRows(x, scale, shift, addend, rectify, y, count);
  } else {
    if (RunsLong<T>()) {
      return RunLong(ScaleLoop<T>{x, scale, shift, addend, rectify, y}, count);
    }
    Chunk<T> inputs, addends, results;
    ForChunks(count, [&](int64_t at, int64_t n) {
      single::ScaleRows(inputs.Read(x, at, n), scale + at, shift + at, addends.Read(addend, at, n),
                       rectify, results.values, n);
      Narrow(results.values, y + at, n);
    });
  }
}

template <typename T>
void AddProducts(const T* dy, const T* x, const float* mean, const T* rectified, float* sum,
                 float* product, int64_t count) {
  if constexpr (std::is_same_v<T, float>) {
    single::AddRowProducts(dy, x, mean, rectified, sum, product, count);
  } else {
    if (RunsLong<T>()) {
      return RunLong(AddProductsLoop<T>{dy, x, mean, rectified, sum, product}, count);
    }
    Chunk<T> gradients, inputs, outputs;
    ForChunks(count, [&](int64_t at, int64_t n) {
      single::AddRowProducts(gradients.Read(dy, at, n), inputs.Read(x, at, n), mean + at,
                         outputs.Read(rectified, at, n), sum + at, product + at, n);
    });
  }
}

template <typename T>
void CombineRows(const T* dy, const T* x, const float* a, const float* b, const float* c,
                 const T* rectified, T* dx, T* passed, int64_t count) {
  if constexpr (std::is_same_v<T, float>) {
    single::CombineRows(dy, x, a, b, c, rectified, dx, passed, count);
  } else {
    T* const kept_rows = rectified ? passed : nullptr;
    if (RunsLong<T>()) {
      return RunLong(CombineLoop<T>{dy, x, a, b, c, rectified, dx, kept_rows}, count);
    }
    Chunk<T> gradients, inputs, outputs, results, kept;
    ForChunks(count, [&](int64_t at, int64_t n) {
      single::CombineRows(gradients.Read(dy, at, n), inputs.Read(x, at, n), a + at, b + at, c + at,
                         outputs.Read(rectified, at, n), results.values,
                         kept_rows ? kept.values : nullptr, n);
      Narrow(results.values, dx + at, n);
      if (kept_rows) Narrow(kept.values, kept_rows + at, n);
    });
  }
}

#define CONVOY_ROW_LOOPS_OF(T)                                                                    \
  template void AddRows(const T*, float*, int64_t);                                               \
  template void AddSquares(const T*, const float*, float*, int64_t);                              \
  template void ScaleRows(const T*, const float*, const float*, const T*, bool, T*, int64_t);     \
  template void AddProducts(const T*, const T*, const float*, const T*, float*, float*, int64_t); \
  template void CombineRows(const T*, const T*, const float*, const float*, const float*,         \
                            const T*, T*, T*, int64_t);
CONVOY_ROW_LOOPS_OF(float)
CONVOY_ROW_LOOPS_OF(Bfloat16)
CONVOY_ROW_LOOPS_OF(Float16)

}  // namespace convoy
