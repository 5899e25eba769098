// The choice between the implementations of a convolution.
//
// This is the only place that chooses by type; the rows `winograd` and `direct` of
// `kernel_support.py` describe the same choice, and a test compares them. The `Takes` of each
// implementation decide by form and size: what they can compute, and what they compute faster than
// oneDNN.
#include "execution.h"

#include "direct.h"
#include "onednn.h"
#include "winograd.h"

namespace convoy {

std::unique_ptr<const Execution> MakeExecution(const Convolution& convolution, int64_t threads) {
  if (convolution.type == dnnl::memory::data_type::f32) {
    if (Winograd::Takes(convolution)) return std::make_unique<Winograd>(convolution, threads);
    if (Direct::Takes(convolution)) return std::make_unique<Direct>(convolution, threads);
  }
  return std::make_unique<OneDnn>(convolution, threads);
}

}  // namespace convoy
