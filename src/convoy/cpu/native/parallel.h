// Dividing work among XLA's own threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>

#include "xla/ffi/api/ffi.h"

namespace convoy {

struct Range {
  int64_t first, last;
};

// The share of one of several parts, which are about as large as each other.
inline Range Share(int64_t count, int64_t part, int64_t parts) {
  return {count * part / parts, count * (part + 1) / parts};
}

// About 50 microseconds.
constexpr int kSpins = 2000;

// Calls `part(i)` for every i below `parts`, on the caller and on threads of XLA's pool, at most
// `threads` in all, and returns when all are done; throws what the first failing part threw.
// More parts than threads even out what holds up one of them.
//
// The caller may itself be one of the pool's threads, and all others may wait like it. So nobody
// waits for a part that has not begun: whoever is free takes the next one, and the caller ends up
// doing alone what nobody came to help with.
template <typename Part>
void ParallelFor(xla::ffi::ThreadPool& pool, int64_t parts, int64_t threads, const Part& part) {
  struct Shared {
    const Part& part;  // outlived by the caller's wait, as no part begins after it
    const int64_t parts;
    std::atomic<int64_t> next{0};
    std::mutex mutex;
    std::condition_variable all_done;
    std::atomic<int64_t> done{0};
    std::exception_ptr failure;

    Shared(const Part& part, int64_t parts) : part(part), parts(parts) {}

    void Work() {
      for (int64_t i; (i = next.fetch_add(1)) < parts;) {
        std::exception_ptr thrown;
        try {
          part(i);
        } catch (...) {
          thrown = std::current_exception();
        }
        std::lock_guard<std::mutex> lock(mutex);
        if (thrown && !failure) failure = thrown;
        if (done.fetch_add(1) + 1 == parts) all_done.notify_one();
      }
    }

    // The last part takes microseconds more as a rule. To sleep and be woken takes tens.
    void Wait() {
      for (int spin = 0; spin < kSpins && done.load() < parts; ++spin) __builtin_ia32_pause();
      std::unique_lock<std::mutex> lock(mutex);
      all_done.wait(lock, [this] { return done.load() == parts; });
      if (failure) std::rethrow_exception(failure);
    }
  };

  if (parts == 1) return part(0);
  const auto shared = std::make_shared<Shared>(part, parts);
  for (int64_t helper = 1; helper < std::min(parts, threads); ++helper) {
    pool.Schedule([shared] { shared->Work(); });
  }
  shared->Work();
  shared->Wait();
}

// A part for each thread.
template <typename Part>
void ParallelFor(xla::ffi::ThreadPool& pool, int64_t parts, const Part& part) {
  ParallelFor(pool, parts, parts, part);
}

}  // namespace convoy
