#include "execution.h"

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

// Parts of unequal size leave threads idle, which a large batch makes up for.
bool DividesWell(int64_t batch, int64_t threads) {
  return batch % threads == 0 || batch >= 8 * threads;
}

bool BatchCanBeCut(const Convolution& it, int64_t threads) {
  return threads > 1 && DividesWell(it.src[0], threads) && IsOutermost(it.src_strides) &&
         IsOutermost(it.dst_strides);
}

// Below this many products for each part, a second thread costs more than it brings.
constexpr int64_t kProductsWorthAThread = 1 << 20;

int64_t Product(const dnnl::memory::dims& sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

int64_t ProductsOfAnImage(const Convolution& it) {
  const int64_t outputs = Product(it.dst) / it.dst[0] / it.dst[1];
  return outputs * Product(it.weights);
}

// Whether an image's rows (the first of the spatial axes) lie one after the other.
bool RowsAreOutermost(const Convolution& it) {
  const auto outermost = [](const dnnl::memory::dims& strides) {
    return IsOutermost(strides) && std::max_element(strides.begin() + 1, strides.end()) ==
                                       strides.begin() + 2;
  };
  return outermost(it.src_strides) && outermost(it.dst_strides);
}

bool IsPointwise(const Convolution& it) {
  const auto all = [](const dnnl::memory::dims& values, int64_t wanted) {
    return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == wanted; });
  };
  const dnnl::memory::dims kernel(it.weights.end() - it.strides.size(), it.weights.end());
  return all(kernel, 1) && all(it.strides, 1) && all(it.padding_low, 0) && all(it.padding_high, 0);
}

// One row for each pixel, so that an image can be cut between any two of them.
Convolution WithPixelsAsRows(Convolution it) {
  const auto flatten = [](dnnl::memory::dims& sizes, dnnl::memory::dims& strides) {
    const int64_t pixel = strides.back();
    sizes[2] = Product(sizes) / sizes[0] / sizes[1];
    std::fill(sizes.begin() + 3, sizes.end(), 1);
    std::fill(strides.begin() + 2, strides.end(), pixel);
  };
  flatten(it.src, it.src_strides);
  flatten(it.dst, it.dst_strides);
  return it;
}

// The rows of the result from `first` to before `end`, and the rows of the source they come from.
struct Band {
  Convolution convolution;
  int64_t first_source_row;
};

Band CutBand(Convolution it, int64_t first, int64_t end) {
  const int64_t reach = (it.weights[it.weights.size() - it.strides.size()] - 1) *
                        (it.dilations[0] + 1);
  const int64_t from = first * it.strides[0] - it.padding_low[0];
  const int64_t to = (end - 1) * it.strides[0] - it.padding_low[0] + reach + 1;
  const int64_t rows = it.src[2];
  it.padding_low[0] = std::max<int64_t>(0, -from);
  const int64_t begin = std::clamp<int64_t>(from, 0, rows);
  const int64_t stop = std::clamp<int64_t>(to, begin, rows);
  it.padding_high[0] = std::max<int64_t>(0, to - rows);
  it.src[2] = stop - begin;
  it.dst[2] = end - first;
  it.src_strides[0] = it.src[2] * it.src_strides[2];
  it.dst_strides[0] = it.dst[2] * it.dst_strides[2];
  return {it, begin};
}

void AddTo(float* __restrict sum, const float* __restrict addend, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] += addend[i];
}

}  // namespace

Execution::Execution(const Convolution& it, int64_t threads)
    : sums_over_batch_(it.kind == Kind::kBackwardWeights),
      takes_packed_weights_(it.kind == Kind::kInference),
      threads_(threads),
      element_bytes_(dnnl::memory::data_type_size(it.type)) {
  // Halves could not be summed without losing what oneDNN keeps while it accumulates.
  const bool can_sum = !sums_over_batch_ || it.type == dnnl::memory::data_type::f32;
  if (can_sum && BatchCanBeCut(it, threads)) {
    CutBatch(it, threads);
  } else if (!getenv("CONVOY_OMP") && takes_packed_weights_ && threads > 1 && RowsAreOutermost(it)) {
    const int64_t worthwhile = ProductsOfAnImage(it) / kProductsWorthAThread;
    CutImages(it, std::clamp<int64_t>(worthwhile, 1, threads));
  }
  // oneDNN may choose another kernel for a part of another size, with another layout of weights.
  if (!PartsShareWeights()) CutBatch(it, 1);
}

bool Execution::PartsShareWeights() const {
  return !parts_.empty() && std::all_of(parts_.begin(), parts_.end(), [this](const Part& part) {
    return part.plan->SharesWeightsWith(Weights());
  });
}

void Execution::CutBatch(const Convolution& it, int64_t parts) {
  const int64_t batch = it.src[0];
  const int64_t share = (batch + parts - 1) / parts;
  omp_threads_ = share < batch ? 1 : static_cast<int>(threads_);
  const ThreadCount guard(omp_threads_);
  parts_.clear();
  for (int64_t first = 0; first < batch; first += share) {
    const int64_t images = std::min(share, batch - first);
    const bool as_before = !parts_.empty() && images == share;
    parts_.push_back({as_before ? parts_.front().plan
                                : std::make_shared<const Plan>(WithBatch(it, images)),
                      first * it.src_strides[0] * element_bytes_,
                      first * it.dst_strides[0] * element_bytes_});
  }
}

void Execution::CutImages(const Convolution& it, int64_t bands) {
  omp_threads_ = 1;
  const ThreadCount guard(omp_threads_);
  const auto image = WithBatch(IsPointwise(it) ? WithPixelsAsRows(it) : it, 1);
  const int64_t rows = image.dst[2];
  parts_.clear();
  for (int64_t i = 0; i < std::min(bands, rows); ++i) {
    const int64_t first = i * rows / std::min(bands, rows);
    const Band band = CutBand(image, first, (i + 1) * rows / std::min(bands, rows));
    if (band.convolution.src[2] == 0) return parts_.clear();  // a band of padding alone
    parts_.push_back({std::make_shared<const Plan>(band.convolution),
                      band.first_source_row * image.src_strides[2] * element_bytes_,
                      first * image.dst_strides[2] * element_bytes_});
  }
  const size_t of_one_image = parts_.size();
  for (int64_t n = 1; n < it.src[0]; ++n) {
    for (size_t i = 0; i < of_one_image; ++i) {
      const Part first = parts_[i];
      parts_.push_back({first.plan, first.source + n * it.src_strides[0] * element_bytes_,
                        first.destination + n * it.dst_strides[0] * element_bytes_});
    }
  }
}

void Execution::RunPart(const Part& part, Arrays arrays, Workspaces& workspaces) const {
  const ThreadCount guard(omp_threads_);
  const auto workspace = workspaces.Acquire(part.plan->workspace_bytes());
  arrays.source += part.source;
  arrays.destination += part.destination;
  if (arrays.addend) arrays.addend += part.destination;
  part.plan->Run(arrays, workspace.data());
}

void Execution::Pack(char* weights, char* packed) const {
  if (!Weights().reorders_weights()) {
    std::memcpy(packed, weights, Weights().weights_bytes());
    return;
  }
  const ThreadCount guard(omp_threads_);
  Weights().ReorderWeights(weights, packed);
}

void Execution::Run(const Arrays& arrays, Workspaces& workspaces,
                    xla::ffi::ThreadPool& pool) const {
  if (sums_over_batch_) return SumOverParts(arrays, workspaces, pool);
  const bool reorders = Weights().reorders_weights() && !takes_packed_weights_;
  const auto reordered = workspaces.Acquire(reorders ? Weights().weights_bytes() : 0);
  Arrays inside = arrays;
  if (reorders) {
    const ThreadCount guard(omp_threads_);
    Weights().ReorderWeights(arrays.weights, reordered.data());
    inside.weights = reordered.data();
  }
  ParallelFor(pool, parts_.size(), [&](int64_t i) { RunPart(parts_[i], inside, workspaces); });
}

void Execution::SumOverParts(const Arrays& arrays, Workspaces& workspaces,
                             xla::ffi::ThreadPool& pool) const {
  const size_t bytes = Weights().weights_bytes();
  const bool reorders = Weights().reorders_weights();
  // The first part's sum is the result, in place unless it is still to be reordered.
  const int64_t count = parts_.size();
  const auto partial = workspaces.Acquire((reorders ? count : count - 1) * bytes);
  char* const first = reorders ? partial.data() : arrays.weights;
  char* const others = reorders ? partial.data() + bytes : partial.data();
  ParallelFor(pool, count, [&](int64_t i) {
    Arrays part = arrays;
    part.weights = i == 0 ? first : others + (i - 1) * bytes;
    RunPart(parts_[i], part, workspaces);
  });
  for (int64_t i = 1; i < count; ++i) {
    AddTo(reinterpret_cast<float*>(first), reinterpret_cast<float*>(others + (i - 1) * bytes),
          bytes / element_bytes_);
  }
  if (reorders) {
    const ThreadCount guard(omp_threads_);
    Weights().ReorderWeights(first, arrays.weights);
  }
}

}  // namespace convoy
