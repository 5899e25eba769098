// A oneDNN primitive of one convolution, with the reorders around it.
#pragma once

#include <cstddef>

#include "convolution.h"
#include "execution.h"

namespace convoy {

// Immutable after construction, so that any number of threads may run it at once.
//
// Weights (or their gradient) are reordered apart from activations, because the parts of a batch
// share them: weights enter the primitive's layout once, then each part runs.
//
//     source        --(reorder)-----> +-----------+
//     weights       --ReorderWeights> | primitive | --(reorder)--> destination
//     bias, addend  ----------------> +-----------+
class Primitive {
 public:
  // Throws dnnl::error if oneDNN has only its slow reference implementation, or none. The primitive
  // is made for the number of threads that OpenMP uses in the calling thread.
  explicit Primitive(const Convolution& convolution);

  const char* implementation() const { return implementation_; }

  size_t weights_bytes() const { return weights_.inside.get_size(); }
  bool reorders_weights() const { return static_cast<bool>(weights_.reorder); }
  // Weights from XLA's layout into the primitive's; for their gradient, the other way.
  void ReorderWeights(void* from, void* to) const;

  size_t workspace_bytes() const { return workspace_bytes_; }
  // All arrays are in XLA's layout but the weights, which are in the primitive's.
  void Run(const Arrays& arrays, char* workspace) const;

  // Whether both take the same bytes for the same weights.
  bool SharesWeightsWith(const Primitive& other) const {
    return weights_.inside == other.weights_.inside;
  }

 private:
  struct Operand {
    dnnl::memory::desc outside;  // as XLA holds it
    dnnl::memory::desc inside;   // as the primitive reads or writes it
    int name;
    bool is_result;
    dnnl::reorder reorder;  // between both; empty if they are equal
    size_t offset = 0;      // of the reordered copy in the workspace
  };

  template <typename Desc>
  void Adopt(const Desc& desc);
  void Finish();
  static void Connect(Operand& operand);
  void Place(Operand& operand);
  dnnl::memory Inside(const Operand& operand, void* data, char* workspace) const;

  Operand source_, weights_, destination_;
  dnnl::primitive primitive_;
  dnnl::memory::desc scratchpad_, bias_, by_channel_;
  bool scales_ = false, adds_ = false;
  size_t workspace_bytes_ = 0;
  const char* implementation_ = "";
};

}  // namespace convoy
