// Pooling and the gradient of max pooling, over the channels of one position after the other.
//
// Channels lie next to each other in `inner`, so each step of a window is a vector operation on a
// block of channels, whose running result stays in the first-level cache.
#include "pooling.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "parallel.h"

// The loops over channels are compiled for several instruction sets, and the one that runs here is
// chosen when the library is loaded.
#if defined(__GNUC__) && !defined(__clang__)
#define CONVOY_VECTORISED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CONVOY_VECTORISED
#endif

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

// Calls `visit(offset)` for the elements of a window, in row-major order.
template <typename Visit>
void ForWindow(const Pooling& p, const Span (&span)[Pooling::kAxes], const Visit& visit) {
  for (int64_t d = 0; d < span[0].taps; ++d) {
    const int64_t depth = span[0].first + d * span[0].step;
    for (int64_t h = 0; h < span[1].taps; ++h) {
      const int64_t height = span[1].first + h * span[1].step;
      const int64_t row = (depth * p.size[1] + height) * p.size[2];
      for (int64_t w = 0; w < span[2].taps; ++w) {
        visit((row + span[2].first + w * span[2].step) * p.inner);
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

template <void (*kTake)(float* __restrict, const float* __restrict, int64_t)>
void Reduce(const Pooling& p, float initial, const float* operand, float* result, int64_t threads,
            xla::ffi::ThreadPool& pool) {
  ForBlocks(p, threads, pool, [&](int64_t outer, int64_t channel, int64_t count) {
    const float* from = operand + outer * p.operand_positions() * p.inner + channel;
    float* to = result + outer * p.pooled_positions() * p.inner + channel;
    ForPooled(p, [&](int64_t pooled, const auto& span) {
      float* const reduced = to + pooled;
      std::fill_n(reduced, count, initial);
      ForWindow(p, span, [&](int64_t offset) { kTake(reduced, from + offset, count); });
    });
  });
}

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

void MaxPool(const Pooling& pooling, const float* operand, float* result, int64_t threads,
             xla::ffi::ThreadPool& pool) {
  const float lowest = -std::numeric_limits<float>::infinity();
  Reduce<TakeMaximum>(pooling, lowest, operand, result, threads, pool);
}

void SumPool(const Pooling& pooling, const float* operand, float* result, int64_t threads,
             xla::ffi::ThreadPool& pool) {
  Reduce<Add>(pooling, 0.0f, operand, result, threads, pool);
}

void MaxPoolGradient(const Pooling& p, const float* source, const float* operand, float* result,
                     int64_t threads, xla::ffi::ThreadPool& pool) {
  // If windows tile the operand, each element is written once; else they are added to zeros.
  const bool are_tiles = AreTiles(p);
  const auto write = are_tiles ? PutWhere : AddWhere;
  ForBlocks(p, threads, pool, [&](int64_t outer, int64_t channel, int64_t count) {
    const int64_t base = outer * p.operand_positions() * p.inner + channel;
    const float* const values = operand + base;
    const float* const gradients = source + outer * p.pooled_positions() * p.inner + channel;
    float* const sums = result + base;
    for (int64_t i = 0; !are_tiles && i < p.operand_positions(); ++i) {
      std::fill_n(sums + i * p.inner, count, 0.0f);
    }
    ForPooled(p, [&](int64_t pooled, const auto& span) {
      float best[kBlock];
      int32_t where[kBlock];
      int32_t tap = 0;
      ForWindow(p, span, [&](int64_t offset) {
        if (tap == 0) {
          std::copy_n(values + offset, count, best);
          std::fill_n(where, count, 0);
        } else {
          Select(best, where, values + offset, tap, count);
        }
        ++tap;
      });
      tap = 0;
      ForWindow(p, span, [&](int64_t offset) {
        write(sums + offset, gradients + pooled, where, tap++, count);
      });
    });
  });
}

}  // namespace convoy
