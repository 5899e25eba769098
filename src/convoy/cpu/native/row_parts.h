// Arrays of rows of channels: dividing the rows among threads, and sums by channel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "parallel.h"
#include "xla/ffi/api/ffi.h"

namespace convoy {

struct Rows {
  int64_t rows, channels, threads;
};

// With few channels, loops over channels would be short. So the values by channel are repeated
// until they fill a tile, and rows are processed a tile at a time.
constexpr int64_t kTile = 256;
// Elements that are read twice should still be in the cache. Sums over this many elements are in
// single precision, sums of these in double precision.
constexpr int64_t kCached = 8192;
constexpr int64_t kFewestRowsCached = 16;
// Minimum number of elements for each thread.
constexpr int64_t kElementsPerThread = 16384;

using Values = std::vector<float>;

inline int64_t TileOf(const Rows& shape) {
  return shape.channels * std::max<int64_t>(1, kTile / shape.channels);
}

inline int64_t CachedOf(const Rows& shape) {
  return shape.channels * std::max(kFewestRowsCached, kCached / shape.channels);
}

// Adds a tile's sums to those of its channels.
template <typename Sum>
void Fold(const Values& tile, int64_t channels, Sum* sums) {
  for (size_t i = 0; i < tile.size(); i += channels) {
    for (int64_t c = 0; c < channels; ++c) sums[c] += tile[i + c];
  }
}

// Calls `work(first, count, part)` for runs of complete rows, as positions in the array.
template <typename Work>
int64_t ForParts(const Rows& shape, xla::ffi::ThreadPool& pool, const Work& work) {
  const int64_t all = shape.rows * shape.channels;
  const int64_t parts = std::clamp<int64_t>(all / kElementsPerThread, 1, shape.threads);
  ParallelFor(pool, parts, [&](int64_t part) {
    const int64_t first = shape.rows * part / parts, last = shape.rows * (part + 1) / parts;
    work(first * shape.channels, (last - first) * shape.channels, part);
  });
  return parts;
}

// Calls `work(first, count)` for pieces of at most `size` elements.
template <typename Work>
void ForPieces(int64_t first, int64_t count, int64_t size, const Work& work) {
  for (int64_t at = 0; at < count; at += size) work(first + at, std::min(size, count - at));
}

}  // namespace convoy
