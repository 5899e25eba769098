// How oneDNN carries out one convolution: its primitive, and the reorders around it.
#pragma once

#include <cstddef>

#include "convolution.h"
#include "workspace.h"

namespace convoy {

// Immutable after construction, so that any number of threads may run it at once.
class Plan {
 public:
  // Throws dnnl::error where oneDNN has no implementation, or only its slow reference one.
  // The primitive is made for the number of threads OpenMP would use here and now.
  explicit Plan(const Convolution& convolution);

  // For forward: source and weights into destination; backward data: gradient of the destination
  // and weights into that of the source; backward weights: source and gradient of the destination
  // into that of the weights.
  void Run(const void* first, const void* second, void* result, Workspaces& workspaces) const;

  const char* implementation() const { return implementation_; }

 private:
  struct Operand {
    dnnl::memory::desc outside;  // as XLA holds it
    dnnl::memory::desc inside;   // as the primitive wants it
    dnnl::reorder reorder;       // empty where both are the same
    int name;
    size_t offset;  // of the reordered copy in the workspace
  };

  void Place(Operand& operand, bool is_result);
  dnnl::memory Enter(const Operand& operand, void* data, char* workspace) const;
  template <typename Desc>
  void Adopt(const Desc& desc);

  Operand first_, second_, result_;
  dnnl::primitive primitive_;
  dnnl::memory::desc scratchpad_;
  size_t scratchpad_offset_ = 0;
  size_t workspace_bytes_ = 0;
  const char* implementation_ = "";
};

}  // namespace convoy
