// Products of small matrices, with all sums in registers: the inner loop of Convoy's convolutions.
//
//            depth                 16 columns
//          +-------+             +-------------+             +-------------+
//   6 or 8 | left  |   x   depth |    right    |   =  6 or 8 |   result    |
//   rows   +-------+             +-------------+      rows   +-------------+
//
// Per step of the depth: one row of `right` is loaded, each value of a column of `left` is
// broadcast, and one fused multiply-add per register of sums follows.
#pragma once

#include <cstdint>
#include <type_traits>

#include "avx2.h"
#include "avx512.h"
#include "instruction_set.h"

namespace convoy {

// Two vectors of AVX2, one of AVX-512.
constexpr int64_t kColumns = 2 * kLanes;
// Of AVX2's 16 registers, 12 hold sums, two a row of the right side, and one a value of the left.
constexpr int kRowsOfAvx2 = 6;
// AVX-512 has vector registers for more rows, but there are not enough general ones to point to
// them.
constexpr int kRowsOfAvx512 = 8;

// Both sum in the same order, so their results have the same bits. The AVX-512 version has a third
// of the instructions, which helps if another thread shares the core and its decoder.
inline bool TakesAvx512() {
  static const bool takes = HasAvx512();
  return takes;
}

// A matrix in memory, or its transpose: elements from one to the next along each axis.
struct Left {
  const float* data;
  int64_t row_step, depth_step;
};

// `next` points to what will be read next. It is prefetched into the second-level cache while
// products are summed, so it may be any address. Without it, weights of many channels would come
// from memory.
struct Right {
  const float* data;
  int64_t depth_step;
  const float* next;
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
    _mm_prefetch(right.next, _MM_HINT_T1);
#pragma GCC unroll 6
    for (int i = 0; i < kCount; ++i) {
      const Vector value = _mm256_broadcast_ss(left.data + i * left.row_step);
      sums[i][0] = _mm256_fmadd_ps(value, low, sums[i][0]);
      sums[i][1] = _mm256_fmadd_ps(value, high, sums[i][1]);
    }
    left.data += left.depth_step;
    right.data += right.depth_step;
    right.next += right.depth_step;
  }
#pragma GCC unroll 6
  for (int i = 0; i < kCount; ++i) {
    float* const row = result.data + i * result.row_step;
    _mm256_storeu_ps(row, sums[i][0]);
    _mm256_storeu_ps(row + kLanes, sums[i][1]);
  }
}

template <int kCount>
CONVOY_AVX512 void MultiplyTile512(Left left, Right right, int64_t depth, Result result,
                                   bool adds) {
  LongVector sums[kCount];
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) {
    sums[i] = adds ? _mm512_loadu_ps(result.data + i * result.row_step) : _mm512_setzero_ps();
  }
  for (int64_t d = 0; d < depth; ++d) {
    const LongVector row = _mm512_loadu_ps(right.data);
    _mm_prefetch(right.next, _MM_HINT_T1);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      sums[i] = _mm512_fmadd_ps(_mm512_set1_ps(left.data[i * left.row_step]), row, sums[i]);
    }
    left.data += left.depth_step;
    right.data += right.depth_step;
    right.next += right.depth_step;
  }
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) _mm512_storeu_ps(result.data + i * result.row_step, sums[i]);
}

// Calls `tile` with a height as a constant.
template <int kMost, typename Tile>
void WithHeight(int64_t height, const Tile& tile) {
  if constexpr (kMost > 1) {
    if (height < kMost) return WithHeight<kMost - 1>(height, tile);
  }
  tile(std::integral_constant<int, kMost>());
}

// Calls `tile` with the height of each tile. Heights differ by at most one row: a tile of a single
// row would take as long as one of three.
template <int kMost, typename Tile>
void ForTiles(int64_t rows, const Tile& tile) {
  const int64_t tiles = (rows + kMost - 1) / kMost;
  for (int64_t i = 0; i < tiles; ++i) {
    WithHeight<kMost>(rows * (i + 1) / tiles - rows * i / tiles, tile);
  }
}

// result = left * right, of 16 columns; `adds` adds to the result instead.
inline void Multiply(Left left, const Right& right, int64_t rows, int64_t depth, Result result,
                     bool adds) {
  const auto go_on = [&](int64_t count) {
    left.data += count * left.row_step;
    result.data += count * result.row_step;
  };
  if (TakesAvx512()) {
    return ForTiles<kRowsOfAvx512>(rows, [&](auto count) {
      MultiplyTile512<count.value>(left, right, depth, result, adds);
      go_on(count.value);
    });
  }
  ForTiles<kRowsOfAvx2>(rows, [&](auto count) {
    MultiplyTile<count.value>(left, right, depth, result, adds);
    go_on(count.value);
  });
}

// Rows of a matrix whose parts lie anywhere: for each of `taps`, pointers to the rows, and of each
// row `depth` values from `first` on.
struct Gathered {
  const float* const* rows;
  int64_t tap_step;
  int64_t taps, first, depth;
};

// Initial values of the sums (null: the values that are there), and the operations at the end.
struct Around {
  const float* bias;
  const float* addend;
  bool rectifies;
};

template <int kCount>
CONVOY_AVX2 void GatherTile(const Gathered& left, Right right, Result result,
                            const Around& around) {
  Vector sums[kCount][2];
#pragma GCC unroll 6
  for (int i = 0; i < kCount; ++i) {
    const float* const from = around.bias ? around.bias : result.data + i * result.row_step;
    sums[i][0] = _mm256_loadu_ps(from);
    sums[i][1] = _mm256_loadu_ps(from + kLanes);
  }
  for (int64_t tap = 0; tap < left.taps; ++tap) {
    const float* rows[kCount];
#pragma GCC unroll 6
    for (int i = 0; i < kCount; ++i) rows[i] = left.rows[tap * left.tap_step + i] + left.first;
    for (int64_t d = 0; d < left.depth; ++d) {
      const Vector low = _mm256_loadu_ps(right.data);
      const Vector high = _mm256_loadu_ps(right.data + kLanes);
      _mm_prefetch(right.next, _MM_HINT_T1);
      right.data += right.depth_step;
      right.next += right.depth_step;
#pragma GCC unroll 6
      for (int i = 0; i < kCount; ++i) {
        const Vector value = _mm256_broadcast_ss(rows[i] + d);
        sums[i][0] = _mm256_fmadd_ps(value, low, sums[i][0]);
        sums[i][1] = _mm256_fmadd_ps(value, high, sums[i][1]);
      }
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kCount; ++i) {
    for (int half = 0; half < 2; ++half) {
      const int64_t at = i * result.row_step + half * kLanes;
      if (around.addend) {
        sums[i][half] = _mm256_add_ps(sums[i][half], _mm256_loadu_ps(around.addend + at));
      }
      sums[i][half] = around.rectifies ? Rectify(sums[i][half]) : sums[i][half];
      _mm256_storeu_ps(result.data + at, sums[i][half]);
    }
  }
}

template <int kCount>
CONVOY_AVX512 void GatherTile512(const Gathered& left, Right right, Result result,
                                 const Around& around) {
  LongVector sums[kCount];
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) {
    sums[i] = _mm512_loadu_ps(around.bias ? around.bias : result.data + i * result.row_step);
  }
  for (int64_t tap = 0; tap < left.taps; ++tap) {
    const float* rows[kCount];
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) rows[i] = left.rows[tap * left.tap_step + i] + left.first;
    for (int64_t d = 0; d < left.depth; ++d) {
      const LongVector row = _mm512_loadu_ps(right.data);
      _mm_prefetch(right.next, _MM_HINT_T1);
      right.data += right.depth_step;
      right.next += right.depth_step;
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) {
        sums[i] = _mm512_fmadd_ps(_mm512_set1_ps(rows[i][d]), row, sums[i]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) {
    const int64_t at = i * result.row_step;
    if (around.addend) sums[i] = _mm512_add_ps(sums[i], _mm512_loadu_ps(around.addend + at));
    _mm512_storeu_ps(result.data + at, around.rectifies ? Rectify(sums[i]) : sums[i]);
  }
}

// result = around(left * right), of 16 columns; the addend lies as the result does.
inline void GatherAndMultiply(Gathered left, const Right& right, int64_t rows, Result result,
                              Around around) {
  const auto go_on = [&](int64_t count) {
    left.rows += count;
    result.data += count * result.row_step;
    if (around.addend) around.addend += count * result.row_step;
  };
  if (TakesAvx512()) {
    return ForTiles<kRowsOfAvx512>(rows, [&](auto count) {
      GatherTile512<count.value>(left, right, result, around);
      go_on(count.value);
    });
  }
  ForTiles<kRowsOfAvx2>(rows, [&](auto count) {
    GatherTile<count.value>(left, right, result, around);
    go_on(count.value);
  });
}

}  // namespace convoy
