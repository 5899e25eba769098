// Convolutions by oneDNN, on XLA's threads or on OpenMP's.
#pragma once

#include <cstdint>
#include <memory>

#include "execution.h"
#include "primitive.h"

namespace convoy {

// A large batch is cut into one part per thread. Each part runs on one of XLA's threads, with a
// primitive for a single thread: no barriers, and no second set of threads beside XLA's. For
// smaller batches oneDNN uses OpenMP's threads.
class OneDnn : public Execution {
 public:
  // Throws dnnl::error if oneDNN has no fast implementation.
  OneDnn(const Convolution& convolution, int64_t threads);

  void Run(const Arrays& arrays, Workspaces& workspaces,
           xla::ffi::ThreadPool& pool) const override;
  void Pack(char* weights, char* packed) const override;
  size_t packed_bytes() const override { return primitive_->weights_bytes(); }
  const char* implementation() const override { return primitive_->implementation(); }

 private:
  struct Part {
    const Primitive* primitive;
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
  std::unique_ptr<const Primitive> primitive_;       // for all parts but perhaps the last
  std::unique_ptr<const Primitive> last_primitive_;  // null if all parts are equal
};

}  // namespace convoy
