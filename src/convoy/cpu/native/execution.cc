// The choice between the implementations of a convolution.
//
// This is the only place that chooses by type; the rows `winograd` and `direct` of
// `kernel_dtypes.py` describe the same choice, and a test compares them. The `Takes` of each
// implementation decide by form and size: what they can compute, and what they compute faster than
// oneDNN.
//
//     float32    Winograd, Direct, OneDnn
//     16 bits    Pointwise or OneDnn, where the CPU computes with the type and oneDNN is fast in it;
//                else Winograd or Widened, which compute in float32
#include "execution.h"

#include "direct.h"
#include "instruction_set.h"
#include "onednn.h"
#include "pointwise.h"
#include "storage.h"
#include "widened.h"
#include "winograd.h"

namespace convoy {
namespace {

using Pointer = std::unique_ptr<const Execution>;

template <typename T>
Pointer MakeWidened(const Convolution& it, int64_t threads) {
  if (WinogradTakes(it)) return std::make_unique<Winograd<T>>(it, threads);
  return std::make_unique<Widened<T>>(it, threads);
}

template <typename T>
Pointer MakeHalf(const Convolution& it, int64_t threads, bool has_instructions) {
  // oneDNN's 16-bit gradients of depthwise convolutions take up to 47 times as long as float32's.
  const bool is_slow = it.grouped && it.kind != Kind::kForward && it.kind != Kind::kInference;
  if (!has_instructions || is_slow) return MakeWidened<T>(it, threads);
  try {
    if (Pointwise::Takes(it)) return std::make_unique<Pointwise>(it, threads);
    return std::make_unique<OneDnn>(it, threads);
  } catch (const dnnl::error&) {
    return MakeWidened<T>(it, threads);
  }
}

}  // namespace

std::unique_ptr<const Execution> MakeExecution(const Convolution& it, int64_t threads) {
  switch (it.type) {
    case dnnl::memory::data_type::bf16:
      return MakeHalf<Bfloat16>(it, threads, HasBfloat16());
    case dnnl::memory::data_type::f16:
      return MakeHalf<Float16>(it, threads, HasFloat16());
    default:
      if (WinogradTakes(it)) return std::make_unique<Winograd<float>>(it, threads);
      if (Direct::Takes(it)) return std::make_unique<Direct>(it, threads);
      return std::make_unique<OneDnn>(it, threads);
  }
}

}  // namespace convoy
