#include "execution.h"

#include "onednn.h"
#include "winograd.h"

namespace convoy {

std::unique_ptr<const Execution> MakeExecution(const Convolution& convolution, int64_t threads) {
  if (Winograd::Takes(convolution)) return std::make_unique<Winograd>(convolution, threads);
  return std::make_unique<OneDnn>(convolution, threads);
}

}  // namespace convoy
