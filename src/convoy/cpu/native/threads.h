// How many OpenMP threads the calling thread uses.
#pragma once

#include <omp.h>

namespace convoy {

// oneDNN divides its work over as many threads as OpenMP grants the caller. XLA may run a kernel on
// a thread that belongs to the user, so what was set before is put back.
class ThreadCount {
 public:
  explicit ThreadCount(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
  ~ThreadCount() { omp_set_num_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  const int before_;
};

}  // namespace convoy
