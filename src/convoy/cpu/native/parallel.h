// Division of work among XLA's threads.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>

#include "own_core.h"
#include "xla/ffi/api/ffi.h"

namespace convoy {

struct Range {
  int64_t first, last;
};

// The range of one of several parts of about the same size.
inline Range Share(int64_t count, int64_t part, int64_t parts) {
  return {count * part / parts, count * (part + 1) / parts};
}

// Polls a condition for a while, and returns whether it holds. Sleeping and being woken takes tens
// of microseconds; the condition usually holds sooner.
template <typename Predicate>
bool SpinUntil(int spins, const Predicate& is_true) {
  for (int i = 0; i < spins; ++i) {
    if (is_true()) return true;
    __builtin_ia32_pause();
  }
  return is_true();
}

// About 50 microseconds.
constexpr int kSpins = 2000;

// Work in pieces, which helpers take until none is left.
class Job {
 public:
  virtual ~Job() = default;
  virtual void Work() = 0;
};

// Helpers that stay awake from one job to the next, each on a core of its own.
//
// A network's layers follow each other within microseconds, and requests within milliseconds. If a
// virtual machine's core sleeps in between, its host may move it to the physical core of the thread
// that it is to help; and Linux may wake a helper on the caller's core.
class AwakeHelpers {
 public:
  // Gives a job to the helpers that are awake; returns their number.
  static int64_t Call(const std::shared_ptr<Job>& job) {
    State& state = Get();
    std::lock_guard<std::mutex> lock(state.mutex);
    if (state.awake == 0) return 0;
    state.job = job;
    state.turn.fetch_add(1, std::memory_order_release);
    return state.awake;
  }

  // Works on a job and on those that come soon after it.
  static void Work(std::shared_ptr<Job> job) {
    State& state = Get();
    int64_t turn;
    {
      std::lock_guard<std::mutex> lock(state.mutex);
      ++state.awake;
      turn = state.turn.load(std::memory_order_relaxed);
    }
    while (job) {
      {
        const OwnCore own(1, true);  // the caller has the first
        job->Work();
      }
      job.reset();
      const auto is_called = [&] { return state.turn.load(std::memory_order_acquire) != turn; };
      SpinUntil(kSpins, is_called);
      // Other threads may use this core meanwhile.
      for (int i = 0; i < kYields && !is_called(); ++i) sched_yield();
      std::lock_guard<std::mutex> lock(state.mutex);
      if (is_called()) {
        turn = state.turn.load(std::memory_order_relaxed);
        job = state.job;
      } else if (--state.awake == 0) {
        state.job.reset();
      }
    }
  }

 private:
  // About 2.5 milliseconds if no other thread uses the core.
  static constexpr int kYields = 5000;

  struct State {
    std::mutex mutex;
    int64_t awake = 0;
    std::atomic<int64_t> turn{0};
    std::shared_ptr<Job> job;
  };

  // Never destroyed: XLA's threads may outlive static destructors.
  static State& Get() {
    static State& state = *new State;
    return state;
  }
};

// Whether helpers stay awake because the next job comes soon. If so, they and the caller are pinned
// to cores of their own.
enum class Afterwards { kLeave, kStay };

// Calls `part(i)` for every i below `parts`, on the caller and on threads of XLA's pool, `threads`
// in all (more if more are awake). Returns when all are done; rethrows the first exception of a
// part. More parts than threads balance the load if one of them is delayed.
//
//     parts     0  1  2  3  4  5  6  7      a counter has the next part
//     caller    0     2        5     7      each thread takes the next one when it is free
//     helper       1     3  4     6
//
// The caller may itself be one of the pool's threads, and all the others may be waiting like it. So
// no thread waits for a part that has not begun: the caller computes all parts that no helper
// takes.
template <typename Part>
void ParallelFor(xla::ffi::ThreadPool& pool, int64_t parts, int64_t threads, Afterwards afterwards,
                 const Part& part) {
  struct Shared : Job {
    const Part& part;  // outlived by the caller's wait, as no part begins after it
    const int64_t parts;
    std::atomic<int64_t> next{0};
    std::mutex mutex;
    std::condition_variable all_done;
    std::atomic<int64_t> done{0};
    std::exception_ptr failure;

    Shared(const Part& part, int64_t parts) : part(part), parts(parts) {}

    void Work() override {
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

    void Wait() {
      SpinUntil(kSpins, [this] { return done.load() == parts; });
      std::unique_lock<std::mutex> lock(mutex);
      all_done.wait(lock, [this] { return done.load() == parts; });
      if (failure) std::rethrow_exception(failure);
    }
  };

  if (parts == 1) return part(0);
  const auto shared = std::make_shared<Shared>(part, parts);
  const int64_t helpers = std::min(parts, threads) - 1;
  for (int64_t helper = AwakeHelpers::Call(shared); helper < helpers; ++helper) {
    pool.Schedule([shared, afterwards] {
      if (afterwards == Afterwards::kLeave) return shared->Work();
      AwakeHelpers::Work(shared);
    });
  }
  const OwnCore own(0, afterwards == Afterwards::kStay);
  shared->Work();
  shared->Wait();
}

// A part for each thread.
template <typename Part>
void ParallelFor(xla::ffi::ThreadPool& pool, int64_t parts, const Part& part) {
  ParallelFor(pool, parts, parts, Afterwards::kLeave, part);
}

}  // namespace convoy
