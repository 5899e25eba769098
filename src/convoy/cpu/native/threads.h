// The number of OpenMP threads that the calling thread uses.
#pragma once

#include <omp.h>

namespace convoy {

// oneDNN uses as many threads as OpenMP allows the caller. XLA may run a kernel on a thread of the
// user's, so the previous number is restored.
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
