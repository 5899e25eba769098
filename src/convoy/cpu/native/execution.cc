#include "execution.h"

#include "direct.h"
#include "onednn.h"
#include "winograd.h"

namespace convoy {

std::unique_ptr<const Execution> MakeExecution(const Convolution& convolution, int64_t threads) {
  if (Winograd::Takes(convolution)) return std::make_unique<Winograd>(convolution, threads);
  if (Direct::Takes(convolution)) return std::make_unique<Direct>(convolution, threads);
  return std::make_unique<OneDnn>(convolution, threads);
}

}  // namespace convoy
