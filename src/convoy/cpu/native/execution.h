// The interface of implementations of a convolution, and the choice between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "convolution.h"
#include "workspace.h"
#include "xla/ffi/api/ffi.h"

namespace convoy {

// The arrays of a call. The kind of convolution decides which of the first three is written; the
// others are for inference only. `scale` and `bias` have a float32 number for each channel out; the
// scale is null where it has been multiplied into the weights.
struct Arrays {
  char* source;
  char* weights;
  char* destination;
  char* scale = nullptr;
  char* bias = nullptr;
  char* addend = nullptr;
};

// Immutable after construction, so that any number of threads may run it at once.
class Execution {
 public:
  virtual ~Execution() = default;

  virtual void Run(const Arrays& arrays, Workspaces& workspaces,
                   xla::ffi::ThreadPool& pool) const = 0;

  // Brings weights into the layout in which inference takes them.
  virtual void Pack(char* weights, char* packed) const = 0;
  virtual size_t packed_bytes() const = 0;

  // Valid for the lifetime of the process.
  virtual const char* implementation() const = 0;
};

// The fastest implementation. Throws if there is none that is faster than XLA's own.
std::unique_ptr<const Execution> MakeExecution(const Convolution& convolution, int64_t threads);

}  // namespace convoy
