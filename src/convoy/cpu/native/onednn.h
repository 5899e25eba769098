// Running a convolution by oneDNN on several threads.
#pragma once

#include <cstdint>
#include <memory>

#include "execution.h"
#include "plan.h"

namespace convoy {

// Where the batch is large enough it is cut into one part for each thread, which is run by one of
// XLA's threads with a primitive made for one thread: no barriers within, no second set of threads
// beside XLA's. Smaller batches are left to oneDNN and OpenMP.
class OneDnn : public Execution {
 public:
  // Throws dnnl::error where oneDNN cannot do it.
  OneDnn(const Convolution& convolution, int64_t threads);

  void Run(const Arrays& arrays, Workspaces& workspaces,
           xla::ffi::ThreadPool& pool) const override;
  void Pack(char* weights, char* packed) const override;
  size_t packed_bytes() const override { return plan_->weights_bytes(); }
  const char* implementation() const override { return plan_->implementation(); }

 private:
  struct Part {
    const Plan* plan;
    int64_t first;
  };

  Part PartAt(int64_t index) const;
  void Cut(const Convolution& convolution, int64_t parts);
  void RunPart(const Part& part, Arrays arrays, Workspaces& workspaces) const;
  void SumOverParts(const Arrays& arrays, Workspaces& workspaces,
                    xla::ffi::ThreadPool& pool) const;

  bool sums_over_batch_, takes_packed_weights_;
  int64_t threads_;
  int omp_threads_;
  int64_t parts_, part_batch_;
  size_t source_step_, destination_step_;  // bytes from one image to the next
  size_t element_bytes_;
  std::unique_ptr<const Plan> plan_;       // of all parts but perhaps the last
  std::unique_ptr<const Plan> last_plan_;  // null where the parts are alike
};

}  // namespace convoy
