// A core for each device.
#pragma once

#include <sched.h>

#include <cstdint>

namespace convoy {

// Keeps the calling thread on its device's core while a kernel runs.
//
// XLA's threads hand a program on to each other, and Linux wakes a thread near the one that woke it.
// So two devices that compute side by side were often found waiting for one core while the other
// one was idle, for a third of their time. Afterwards the thread may run where it might before.
class OwnCore {
 public:
  OwnCore(int32_t device, bool wanted) {
    if (!wanted || sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
    const int cores = CPU_COUNT(&before_);
    if (cores < 2) return;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(Core(device % cores), &own);
    keeps_ = sched_setaffinity(0, sizeof(own), &own) == 0;
  }
  ~OwnCore() {
    if (keeps_) sched_setaffinity(0, sizeof(before_), &before_);
  }
  OwnCore(const OwnCore&) = delete;
  OwnCore& operator=(const OwnCore&) = delete;

 private:
  // The core that comes after `place` others of those that the thread may run on.
  int Core(int place) const {
    int core = 0;
    while (!CPU_ISSET(core, &before_) || place-- > 0) ++core;
    return core;
  }

  cpu_set_t before_;
  bool keeps_ = false;
};

}  // namespace convoy
