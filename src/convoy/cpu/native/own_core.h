// Pinning of the threads that compute for a device to a core of its own.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace convoy {

// Pins the calling thread to a core while a kernel runs: to its device's core, or, if another
// thread computes for the same device already, to the next free one.
//
// XLA's threads pass a program from one to another, and Linux wakes a thread near the one that woke
// it. Without pinning, two devices that compute concurrently spent a third of their time waiting
// for the same core while another was idle. The thread's affinity is restored afterwards.
class OwnCore {
 public:
  OwnCore(int32_t device, bool wanted) {
    if (!wanted || sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
    const int cores = std::min(CPU_COUNT(&before_), kMostCores);
    if (cores < 2) return;
    // A thread stays on the core of its previous kernel if it computes for the same device.
    thread_local Last last = {-1, 0};
    const int first = last.device == device ? last.place : device % cores;
    for (int i = 0; i < cores && place_ < 0; ++i) Claim((first + i) % cores);
    if (place_ < 0) return;
    last = {device, place_};
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(Core(place_), &own);
    keeps_ = sched_setaffinity(0, sizeof(own), &own) == 0;
  }
  ~OwnCore() {
    if (keeps_) sched_setaffinity(0, sizeof(before_), &before_);
    if (place_ >= 0) claimed().fetch_and(~(uint64_t{1} << place_));
  }
  OwnCore(const OwnCore&) = delete;
  OwnCore& operator=(const OwnCore&) = delete;

 private:
  static constexpr int kMostCores = 64;

  struct Last {
    int32_t device;
    int place;
  };

  // A bit for each core that a kernel is pinned to.
  static std::atomic<uint64_t>& claimed() {
    static std::atomic<uint64_t> bits{0};
    return bits;
  }

  void Claim(int place) {
    const uint64_t bit = uint64_t{1} << place;
    if (!(claimed().fetch_or(bit) & bit)) place_ = place;
  }

  // The core with index `place` among those that the thread may run on.
  int Core(int place) const {
    int core = 0;
    while (!CPU_ISSET(core, &before_) || place-- > 0) ++core;
    return core;
  }

  cpu_set_t before_;
  int place_ = -1;  // among the cores that it may run on
  bool keeps_ = false;
};

}  // namespace convoy
