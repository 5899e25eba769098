// What carries out a convolution on several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "convolution.h"
#include "workspace.h"
#include "xla/ffi/api/ffi.h"

namespace convoy {

// Where the arrays of a call lie. Which of the first three is written depends on the kind of
// convolution; the other two are there for inference only.
struct Arrays {
  char* source;
  char* weights;
  char* destination;
  char* bias = nullptr;
  char* addend = nullptr;
};

// Immutable after construction, so that any number of threads may run it at once.
class Execution {
 public:
  virtual ~Execution() = default;

  virtual void Run(const Arrays& arrays, Workspaces& workspaces,
                   xla::ffi::ThreadPool& pool) const = 0;

  // Inference takes its weights as this writes them.
  virtual void Pack(char* weights, char* packed) const = 0;
  virtual size_t packed_bytes() const = 0;

  // Good for the process's lifetime.
  virtual const char* implementation() const = 0;
};

// The fastest there is. Throws where there is none worth using.
std::unique_ptr<const Execution> MakeExecution(const Convolution& convolution, int64_t threads);

}  // namespace convoy
