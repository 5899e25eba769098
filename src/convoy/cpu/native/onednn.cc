// Division of a batch among threads, each of which runs oneDNN's primitive on its part.
//
// Forward and backward data: parts write disjoint images. Backward weights: each part sums into an
// array of its own, and the arrays are added up at the end.
#include "onednn.h"

#include <algorithm>
#include <cstring>

#include "parallel.h"
#include "threads.h"

namespace convoy {
namespace {

Convolution WithBatch(Convolution convolution, int64_t batch) {
  convolution.src[0] = convolution.dst[0] = batch;
  return convolution;
}

bool IsOutermost(const dnnl::memory::dims& strides) {
  return std::max_element(strides.begin(), strides.end()) == strides.begin();
}

// Parts of unequal size leave threads idle; with a large batch the difference does not matter.
bool DividesWell(int64_t batch, int64_t threads) {
  return batch % threads == 0 || batch >= 8 * threads;
}

bool CanBeCut(const Convolution& it, int64_t threads) {
  return threads > 1 && DividesWell(it.src[0], threads) && IsOutermost(it.src_strides) &&
         IsOutermost(it.dst_strides);
}

void AddTo(float* __restrict sum, const float* __restrict addend, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] += addend[i];
}

}  // namespace

OneDnn::OneDnn(const Convolution& it, int64_t threads)
    : sums_over_batch_(it.kind == Kind::kBackwardWeights),
      takes_packed_weights_(it.kind == Kind::kInference),
      threads_(threads),
      element_bytes_(dnnl::memory::data_type_size(it.type)) {
  source_step_ = it.src_strides[0] * element_bytes_;
  destination_step_ = it.dst_strides[0] * element_bytes_;
  Cut(it, CanBeCut(it, threads) ? threads : 1);
  // For the smaller last part oneDNN may choose another kernel, with another layout of weights.
  if (last_primitive_ && !last_primitive_->SharesWeightsWith(*primitive_)) Cut(it, 1);
}

void OneDnn::Cut(const Convolution& it, int64_t parts) {
  const int64_t batch = it.src[0];
  part_batch_ = (batch + parts - 1) / parts;
  parts_ = (batch + part_batch_ - 1) / part_batch_;
  omp_threads_ = parts_ > 1 ? 1 : static_cast<int>(threads_);

  const ThreadCount guard(omp_threads_);
  primitive_ = std::make_unique<const Primitive>(WithBatch(it, part_batch_));
  const int64_t rest = batch - (parts_ - 1) * part_batch_;
  last_primitive_.reset(rest == part_batch_ ? nullptr : new Primitive(WithBatch(it, rest)));
}

OneDnn::Part OneDnn::PartAt(int64_t index) const {
  const bool is_last = index == parts_ - 1;
  const auto& primitive = is_last && last_primitive_ ? last_primitive_ : primitive_;
  return {primitive.get(), index * part_batch_};
}

void OneDnn::RunPart(const Part& part, Arrays arrays, Workspaces& workspaces) const {
  const ThreadCount guard(omp_threads_);
  const auto workspace = workspaces.Acquire(part.primitive->workspace_bytes());
  arrays.source += part.first * source_step_;
  arrays.destination += part.first * destination_step_;
  if (arrays.addend) arrays.addend += part.first * destination_step_;
  part.primitive->Run(arrays, workspace.data());
}

void OneDnn::Pack(char* weights, char* packed) const {
  if (!primitive_->reorders_weights()) {
    std::memcpy(packed, weights, primitive_->weights_bytes());
    return;
  }
  const ThreadCount guard(omp_threads_);
  primitive_->ReorderWeights(weights, packed);
}

void OneDnn::Run(const Arrays& arrays, Workspaces& workspaces,
                    xla::ffi::ThreadPool& pool) const {
  if (sums_over_batch_) return SumOverParts(arrays, workspaces, pool);
  const bool reorders = primitive_->reorders_weights() && !takes_packed_weights_;
  const auto reordered = workspaces.Acquire(reorders ? primitive_->weights_bytes() : 0);
  Arrays inside = arrays;
  if (reorders) {
    const ThreadCount guard(omp_threads_);
    primitive_->ReorderWeights(arrays.weights, reordered.data());
    inside.weights = reordered.data();
  }
  ParallelFor(pool, parts_, [&](int64_t i) { RunPart(PartAt(i), inside, workspaces); });
}

void OneDnn::SumOverParts(const Arrays& arrays, Workspaces& workspaces,
                             xla::ffi::ThreadPool& pool) const {
  const size_t bytes = primitive_->weights_bytes();
  const bool reorders = primitive_->reorders_weights();
  // The other parts are added to the sum of the first, which is the result unless it is reordered.
  const auto partial = workspaces.Acquire((reorders ? parts_ : parts_ - 1) * bytes);
  char* const first = reorders ? partial.data() : arrays.weights;
  char* const others = reorders ? partial.data() + bytes : partial.data();
  ParallelFor(pool, parts_, [&](int64_t i) {
    Arrays part = arrays;
    part.weights = i == 0 ? first : others + (i - 1) * bytes;
    RunPart(PartAt(i), part, workspaces);
  });
  for (int64_t i = 1; i < parts_; ++i) {
    AddTo(reinterpret_cast<float*>(first), reinterpret_cast<float*>(others + (i - 1) * bytes),
          bytes / sizeof(float));
  }
  if (reorders) {
    const ThreadCount guard(omp_threads_);
    primitive_->ReorderWeights(first, arrays.weights);
  }
}

}  // namespace convoy
