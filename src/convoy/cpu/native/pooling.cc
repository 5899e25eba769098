// Pooling and the gradient of max pooling, over the channels of one position after the other.
//
// Channels lie next to each other in `inner`, so each step of a window is a vector operation on a
// block of channels, whose running result stays in the first-level cache. Blocks that are stored in
// 16 bits are converted to float32 there (`storage.h`).
#include "pooling.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "instruction_set.h"
#include "long_storage.h"
#include "parallel.h"
#include "storage.h"
#include "vectorised.h"

namespace convoy {
namespace {

// Channels that are processed at once: their running maxima stay in the first-level cache.
constexpr int64_t kBlock = 64;

// The running maximum behaves as XLA's: once it is NaN, it stays NaN.
CONVOY_VECTORISED void TakeMaximum(float* __restrict best, const float* __restrict values,
                                   int64_t count) {
  for (int64_t c = 0; c < count; ++c) {
    const bool replaces = values[c] > best[c] || values[c] != values[c];
    best[c] = replaces ? values[c] : best[c];
  }
}

CONVOY_VECTORISED void Add(float* __restrict sum, const float* __restrict values, int64_t count) {
  for (int64_t c = 0; c < count; ++c) sum[c] += values[c];
}

// Keeps the position of the maximum. The earlier of two equal elements wins; NaN wins over numbers.
CONVOY_VECTORISED void Select(float* __restrict best, int32_t* __restrict where,
                              const float* __restrict values, int32_t here, int64_t count) {
  for (int64_t c = 0; c < count; ++c) {
    const bool keeps = best[c] >= values[c];
    best[c] = keeps ? best[c] : values[c];
    where[c] = keeps ? where[c] : here;
  }
}

CONVOY_VECTORISED void AddWhere(float* __restrict sum, const float* __restrict values,
                                const int32_t* __restrict where, int32_t here, int64_t count) {
  for (int64_t c = 0; c < count; ++c) sum[c] += where[c] == here ? values[c] : 0.0f;
}

CONVOY_VECTORISED void PutWhere(float* __restrict to, const float* __restrict values,
                                const int32_t* __restrict where, int32_t here, int64_t count) {
  // As if added to zero: minus zero becomes zero.
  for (int64_t c = 0; c < count; ++c) to[c] = where[c] == here ? 0.0f + values[c] : 0.0f;
}

// The part of a window along one axis that lies inside the operand.
struct Span {
  int64_t first, taps, step;
};

Span Inside(const Pooling& p, int axis, int64_t position) {
  const int64_t start = position * p.stride[axis] - p.padding[axis];
  const int64_t step = p.dilation[axis];
  const int64_t skipped = start < 0 ? (-start + step - 1) / step : 0;
  const int64_t first = start + skipped * step;
  const int64_t room = first < p.size[axis] ? (p.size[axis] - 1 - first) / step + 1 : 0;
  return {first, std::min(p.window[axis] - skipped, room), step};
}

// Calls `visit(position)` for the elements of a window, in row-major order.
template <typename Visit>
void ForWindow(const Pooling& p, const Span (&span)[Pooling::kAxes], const Visit& visit) {
  for (int64_t d = 0; d < span[0].taps; ++d) {
    const int64_t depth = span[0].first + d * span[0].step;
    for (int64_t h = 0; h < span[1].taps; ++h) {
      const int64_t height = span[1].first + h * span[1].step;
      const int64_t row = (depth * p.size[1] + height) * p.size[2];
      for (int64_t w = 0; w < span[2].taps; ++w) {
        visit(row + span[2].first + w * span[2].step);
      }
    }
  }
}

// Calls `visit(pooled offset, span of its window)` for every position of one outer element.
template <typename Visit>
void ForPooled(const Pooling& p, const Visit& visit) {
  int64_t offset = 0;
  Span span[Pooling::kAxes];
  for (int64_t d = 0; d < p.pooled[0]; ++d) {
    span[0] = Inside(p, 0, d);
    for (int64_t h = 0; h < p.pooled[1]; ++h) {
      span[1] = Inside(p, 1, h);
      for (int64_t w = 0; w < p.pooled[2]; ++w, offset += p.inner) {
        span[2] = Inside(p, 2, w);
        visit(offset, span);
      }
    }
  }
}

// Whether every element of the operand is in exactly one window.
bool AreTiles(const Pooling& p) {
  for (int axis = 0; axis < Pooling::kAxes; ++axis) {
    const bool apart = p.stride[axis] == p.window[axis] && p.dilation[axis] == 1;
    const bool all = p.padding[axis] == 0 && p.pooled[axis] * p.stride[axis] == p.size[axis];
    if (!apart || !all) return false;
  }
  return true;
}

// Divides (outer elements) x (blocks of channels) among threads; their results are disjoint.
template <typename Work>
void ForBlocks(const Pooling& p, int64_t threads, xla::ffi::ThreadPool& pool, const Work& work) {
  const int64_t blocks = (p.inner + kBlock - 1) / kBlock;
  const int64_t all = p.outer * blocks;
  const int64_t parts = std::min(threads, all);
  if (parts == 0) return;
  ParallelFor(pool, parts, [&](int64_t part) {
    for (int64_t i = all * part / parts; i < all * (part + 1) / parts; ++i) {
      const int64_t channel = i % blocks * kBlock;
      work(i / blocks, channel, std::min(kBlock, p.inner - channel));
    }
  });
}

template <typename T, void (*kTake)(float* __restrict, const float* __restrict, int64_t)>
void Reduce(const Pooling& p, float initial, const T* operand, T* result, int64_t threads,
            xla::ffi::ThreadPool& pool) {
  ForBlocks(p, threads, pool, [&](int64_t outer, int64_t channel, int64_t count) {
    const T* const from = operand + outer * p.operand_positions() * p.inner + channel;
    T* const to = result + outer * p.pooled_positions() * p.inner + channel;
    Tile<T> values(kBlock), results(kBlock);
    ForPooled(p, [&](int64_t pooled, const auto& span) {
      float* const reduced = results.Target(to + pooled);
      std::fill_n(reduced, count, initial);
      ForWindow(p, span, [&](int64_t position) {
        kTake(reduced, values.Read(from + position * p.inner, count), count);
      });
      results.Write(to + pooled, count);
    });
  });
}

// The elements of one window: where they are read, and where their gradient is summed up.
template <typename T>
struct Taps {
  std::vector<const T*> values;
  std::vector<float*> sums;
};

// Finds the maximum of a window, and adds the gradient to its sum, with all that is compared in
// registers. The order of comparisons is that of `Select`.
template <bool kFull, typename T>
CONVOY_AVX512_CORE inline void AddAtMaximum(const Taps<T>& taps, const T* gradients, int64_t channel,
                                            __mmask16 lanes) {
  const int count = static_cast<int>(taps.values.size());
  LongVector best = LoadLong<kFull>(taps.values[0] + channel, lanes);
  __m512i where = _mm512_setzero_si512();
  for (int tap = 1; tap < count; ++tap) {
    const LongVector value = LoadLong<kFull>(taps.values[tap] + channel, lanes);
    const __mmask16 replaces = _mm512_cmp_ps_mask(best, value, _CMP_NGE_UQ);
    best = _mm512_mask_mov_ps(best, replaces, value);
    where = _mm512_mask_set1_epi32(where, replaces, tap);
  }
  const LongVector gradient = LoadLong<kFull>(gradients + channel, lanes);
  for (int tap = 0; tap < count; ++tap) {
    const __mmask16 here = _mm512_cmpeq_epi32_mask(where, _mm512_set1_epi32(tap));
    float* const sum = taps.sums[tap] + channel;
    const LongVector before = LoadLong<kFull>(sum, lanes);
    StoreLong<kFull>(_mm512_mask_add_ps(before, here, before, gradient), sum, lanes);
  }
}

template <typename T>
CONVOY_AVX512_CORE void AddAtMaxima(const Taps<T>& taps, const T* gradients, int64_t channels) {
  int64_t c = 0;
  for (; c + kLongLanes <= channels; c += kLongLanes) {
    AddAtMaximum<true>(taps, gradients, c, 0xffff);
  }
  if (c < channels) AddAtMaximum<false>(taps, gradients, c, FirstLanes(channels - c));
}

// The sums of a gradient, for a block of channels of one outer element. In float32 they are the
// result itself. In 16 bits they are kept in float32, and each row is rounded once no further window
// reaches it, so that the rows in between stay in the cache.
template <typename T>
class GradientSums {
 public:
  GradientSums(const Pooling& p, T* result, int64_t count)
      : p_(p), result_(result), count_(count), rows_(p.size[0] * p.size[1]) {
    if constexpr (std::is_same_v<T, float>) {
      for (int64_t i = 0; i < p.operand_positions(); ++i) std::fill_n(At(i), count, 0.0f);
    } else {
      // Windows that also extend over the first axis come back to rows.
      const int64_t reach = (p.window[1] - 1) * p.dilation[1] + 1;
      kept_ = p.size[0] == 1 ? std::min(reach, rows_) : rows_;
      sums_.resize(kept_ * p.size[2] * count);
    }
  }

  float* At(int64_t position) {
    if constexpr (std::is_same_v<T, float>) {
      return result_ + position * p_.inner;
    } else {
      const int64_t row = position / p_.size[2], column = position % p_.size[2];
      return &sums_[(row % kept_ * p_.size[2] + column) * count_];
    }
  }

  // Rounds the rows before this one.
  void FinishBefore(int64_t row) {
    if constexpr (!std::is_same_v<T, float>) {
      for (; finished_ < std::min(row, rows_); ++finished_) {
        for (int64_t column = 0; column < p_.size[2]; ++column) {
          const int64_t position = finished_ * p_.size[2] + column;
          float* const sums = At(position);
          Narrow(sums, result_ + position * p_.inner, count_);
          std::fill_n(sums, count_, 0.0f);
        }
      }
    }
  }

  // The first row that the window reaches, if no later window reaches those before it.
  void Reach(const Span (&span)[Pooling::kAxes]) {
    if (p_.size[0] == 1) FinishBefore(span[1].first);
  }

  void Finish() { FinishBefore(rows_); }

 private:
  const Pooling& p_;
  T* const result_;
  const int64_t count_, rows_;
  int64_t kept_ = 0, finished_ = 0;
  std::vector<float> sums_;
};

// The gradient of a block of channels of one outer element.
template <typename T>
class BlockGradient {
 public:
  BlockGradient(const Pooling& p, const T* source, const T* operand, int64_t count)
      : p_(p), source_(source), operand_(operand), count_(count) {}

  void Add(T* result) {
    GradientSums<T> sums(p_, result, count_);
    ForPooled(p_, [&](int64_t pooled, const auto& span) {
      sums.Reach(span);
      taps_.values.clear();
      taps_.sums.clear();
      ForWindow(p_, span, [&](int64_t position) {
        taps_.values.push_back(operand_ + position * p_.inner);
        taps_.sums.push_back(sums.At(position));
      });
      if (!taps_.values.empty()) AddWindow(source_ + pooled);
    });
    sums.Finish();
  }

  // For windows that tile the operand: each element is written once.
  void WriteTiles(T* result) {
    ForPooled(p_, [&](int64_t pooled, const auto& span) {
      taps_.values.clear();
      ForWindow(p_, span, [&](int64_t position) {
        taps_.values.push_back(operand_ + position * p_.inner);
      });
      FindMaxima();
      const float* const gradients = gradients_.Read(source_ + pooled, count_);
      int32_t tap = 0;
      ForWindow(p_, span, [&](int64_t position) {
        T* const to = result + position * p_.inner;
        PutWhere(results_.Target(to), gradients, where_, tap++, count_);
        results_.Write(to, count_);
      });
    });
  }

 private:
  void AddWindow(const T* source) {
    if (has_avx512_) return AddAtMaxima(taps_, source, count_);
    FindMaxima();
    const float* const gradients = gradients_.Read(source, count_);
    for (size_t tap = 0; tap < taps_.sums.size(); ++tap) {
      AddWhere(taps_.sums[tap], gradients, where_, static_cast<int32_t>(tap), count_);
    }
  }

  void FindMaxima() {
    float best[kBlock];
    for (size_t tap = 0; tap < taps_.values.size(); ++tap) {
      const float* const values = values_.Read(taps_.values[tap], count_);
      if (tap == 0) {
        std::copy_n(values, count_, best);
        std::fill_n(where_, count_, 0);
      } else {
        Select(best, where_, values, static_cast<int32_t>(tap), count_);
      }
    }
  }

  const Pooling& p_;
  const T* const source_;
  const T* const operand_;
  const int64_t count_;
  const bool has_avx512_ = HasAvx512();
  Taps<T> taps_;
  Tile<T> values_{kBlock}, gradients_{kBlock}, results_{kBlock};
  int32_t where_[kBlock];
};

}  // namespace

Pooling Pooling::Parse(const int64_t* description, size_t size) {
  static_assert(sizeof(Pooling) == (2 + 6 * kAxes) * sizeof(int64_t), "a plain run of integers");
  Pooling pooling;
  if (size * sizeof(int64_t) != sizeof(Pooling)) {
    throw std::invalid_argument("description of a pooling has the wrong length");
  }
  std::memcpy(&pooling, description, sizeof(Pooling));
  return pooling;
}

template <typename T>
void MaxPool(const Pooling& pooling, const T* operand, T* result, int64_t threads,
             xla::ffi::ThreadPool& pool) {
  const float lowest = -std::numeric_limits<float>::infinity();
  Reduce<T, TakeMaximum>(pooling, lowest, operand, result, threads, pool);
}

template <typename T>
void SumPool(const Pooling& pooling, const T* operand, T* result, int64_t threads,
             xla::ffi::ThreadPool& pool) {
  Reduce<T, Add>(pooling, 0.0f, operand, result, threads, pool);
}

template <typename T>
void MaxPoolGradient(const Pooling& p, const T* source, const T* operand, T* result,
                     int64_t threads, xla::ffi::ThreadPool& pool) {
  // If windows tile the operand, each element is written once; else they are added to zeros.
  const bool are_tiles = AreTiles(p);
  const int64_t positions = p.operand_positions();
  ForBlocks(p, threads, pool, [&](int64_t outer, int64_t channel, int64_t count) {
    const int64_t base = outer * positions * p.inner + channel;
    T* const to = result + base;
    BlockGradient<T> gradient(p, source + outer * p.pooled_positions() * p.inner + channel,
                              operand + base, count);
    if (are_tiles) {
      gradient.WriteTiles(to);
    } else {
      gradient.Add(to);
    }
  });
}

#define CONVOY_POOLINGS_OF(T)                                                                     \
  template void MaxPool(const Pooling&, const T*, T*, int64_t, xla::ffi::ThreadPool&);            \
  template void SumPool(const Pooling&, const T*, T*, int64_t, xla::ffi::ThreadPool&);            \
  template void MaxPoolGradient(const Pooling&, const T*, const T*, T*, int64_t,                  \
                                xla::ffi::ThreadPool&);
CONVOY_POOLINGS_OF(float)
CONVOY_POOLINGS_OF(Bfloat16)
CONVOY_POOLINGS_OF(Float16)

}  // namespace convoy
