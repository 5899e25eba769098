// Running a convolution on several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plan.h"
#include "workspace.h"
#include "xla/ffi/api/ffi.h"

namespace convoy {

// Where the batch is large enough it is cut into one part for each thread, which is run by one of
// XLA's threads with a primitive made for one thread: no barriers within, no second set of threads
// beside XLA's. Inference cuts the images of smaller batches into bands; all else is left to oneDNN
// and OpenMP.
class Execution {
 public:
  // Throws dnnl::error where oneDNN cannot do it.
  Execution(const Convolution& convolution, int64_t threads);

  void Run(const Arrays& arrays, Workspaces& workspaces, xla::ffi::ThreadPool& pool) const;

  // Inference takes its weights as this writes them.
  void Pack(char* weights, char* packed) const;
  size_t packed_bytes() const { return Weights().weights_bytes(); }

  const char* implementation() const { return Weights().implementation(); }

 private:
  struct Part {
    std::shared_ptr<const Plan> plan;
    size_t source, destination;  // bytes from the start of the array to that of the part
  };

  void CutBatch(const Convolution& convolution, int64_t parts);
  void CutImages(const Convolution& convolution, int64_t bands);
  bool PartsShareWeights() const;
  // The plan whose layout of weights is that of all parts.
  const Plan& Weights() const { return *parts_.front().plan; }
  void RunPart(const Part& part, Arrays arrays, Workspaces& workspaces) const;
  void SumOverParts(const Arrays& arrays, Workspaces& workspaces,
                    xla::ffi::ThreadPool& pool) const;

  const bool sums_over_batch_, takes_packed_weights_;
  const int64_t threads_;
  const size_t element_bytes_;
  int omp_threads_;
  std::vector<Part> parts_;
};

}  // namespace convoy
