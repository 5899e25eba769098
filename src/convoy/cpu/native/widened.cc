// Blocks of images in float32, and what is done with their results.
#include "widened.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

#include "threads.h"
#include "vectorised.h"

namespace convoy {
namespace {

// Elements of source and destination of a block, whose copies in float32 should fit the
// second-level cache.
constexpr int64_t kCachedElements = 1 << 17;
// The gradient of the weights is added up once for each block: elements of a block for each weight.
constexpr int64_t kElementsPerWeight = 2;

template <typename T>
T* As(char* bytes) {
  return reinterpret_cast<T*>(bytes);
}

int64_t SizeOf(const dnnl::memory::dims& sizes) {
  int64_t size = 1;
  for (const int64_t each : sizes) size *= each;
  return size;
}

// Elements of one image, whatever the order of the other axes.
int64_t ImageOf(const dnnl::memory::dims& sizes) { return SizeOf(sizes) / sizes[0]; }

bool IsOutermost(const dnnl::memory::dims& sizes, const dnnl::memory::dims& strides) {
  return sizes[0] == 1 || strides[0] == ImageOf(sizes);
}

// "widened jit:avx2". Valid for the lifetime of the process.
const char* NameOf(const char* implementation) {
  static auto& mutex = *new std::mutex;
  static auto& names = *new std::set<std::string>;
  std::lock_guard<std::mutex> lock(mutex);
  return names.insert(std::string("widened ") + implementation).first->c_str();
}

CONVOY_VECTORISED void AddTo(float* __restrict sum, const float* __restrict addend,
                             int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += addend[i];
}

CONVOY_VECTORISED void Scale(float* __restrict values, const float* __restrict scale,
                             int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] *= scale[i];
}

CONVOY_VECTORISED void Rectify(float* values, int64_t count) {
  // NaN stays NaN.
  for (int64_t i = 0; i < count; ++i) values[i] = values[i] < 0.0f ? 0.0f : values[i];
}

}  // namespace

template <typename T>
Widened<T>::Widened(const Convolution& it, int64_t threads)
    : kind_(it.kind),
      threads_(threads),
      weights_size_(SizeOf(it.weights)),
      channels_(it.dst[1]),
      rectifies_(it.rectifies) {
  const bool is_inference = kind_ == Kind::kInference;
  if (is_inference && !IsDenseChannelsLast(it.dst, it.dst_strides)) {
    throw dnnl::error(dnnl_unimplemented, "what follows a convolution is for channels last");
  }
  block_ = BlockOf(it);
  blocks_ = it.src[0] / block_;
  omp_threads_ = blocks_ > 1 ? 1 : threads_;
  Convolution block = it;
  block.type = dnnl::memory::data_type::f32;
  block.src[0] = block.dst[0] = block_;
  // Scale, bias, addition and ReLU are part of `Finish`.
  if (is_inference) block.kind = Kind::kForward;
  source_size_ = SizeOf(block.src);
  destination_size_ = SizeOf(block.dst);
  const ThreadCount guard(static_cast<int>(omp_threads_));
  primitive_ = std::make_unique<const Primitive>(block);
  name_ = NameOf(primitive_->implementation());
}

// A divisor of the batch, so that all blocks are equal.
template <typename T>
int64_t Widened<T>::BlockOf(const Convolution& it) const {
  const int64_t batch = it.src[0];
  const bool can_be_cut =
      IsOutermost(it.src, it.src_strides) && IsOutermost(it.dst, it.dst_strides);
  if (!can_be_cut || batch < threads_) return batch;
  const int64_t image = ImageOf(it.src) + ImageOf(it.dst);
  int64_t wanted = kCachedElements / image;
  if (kind_ == Kind::kBackwardWeights) {
    // oneDNN's gradient of depthwise weights takes long for each call.
    wanted = it.grouped ? batch : std::max(wanted, kElementsPerWeight * weights_size_ / image);
  }
  int64_t block = std::clamp<int64_t>(wanted, 1, batch / threads_);
  while (batch % block != 0) --block;
  return block;
}

template <typename T>
void Widened<T>::Pack(char* weights, char* packed) const {
  std::vector<float> widened(primitive_->reorders_weights() ? weights_size_ : 0);
  float* const to = primitive_->reorders_weights() ? widened.data() : As<float>(packed);
  Widen(As<T>(weights), to, weights_size_);
  const ThreadCount guard(static_cast<int>(omp_threads_));
  if (primitive_->reorders_weights()) primitive_->ReorderWeights(to, packed);
}

template <typename T>
void Widened<T>::Run(const Arrays& arrays, Workspaces& workspaces,
                     xla::ffi::ThreadPool& pool) const {
  if (kind_ == Kind::kBackwardWeights) return SumOverBlocks(arrays, workspaces, pool);
  const bool is_packed = kind_ == Kind::kInference;
  const auto own = workspaces.Acquire(is_packed ? 0 : packed_bytes());
  if (!is_packed) Pack(arrays.weights, own.data());
  char* const packed = is_packed ? arrays.weights : own.data();
  const int64_t parts = std::min(threads_, blocks_);
  ParallelFor(pool, parts, [&](int64_t part) {
    Compute(arrays, packed, Share(blocks_, part, parts), workspaces);
  });
}

template <typename T>
void Widened<T>::Compute(const Arrays& arrays, char* packed, Range blocks,
                         Workspaces& workspaces) const {
  const ThreadCount guard(static_cast<int>(omp_threads_));
  const auto activations =
      workspaces.Acquire((source_size_ + destination_size_) * sizeof(float));
  const auto scratch = workspaces.Acquire(primitive_->workspace_bytes());
  float* const source = As<float>(activations.data());
  float* const destination = source + source_size_;
  const Arrays inside = {reinterpret_cast<char*>(source), packed,
                         reinterpret_cast<char*>(destination)};
  for (int64_t block = blocks.first; block < blocks.last; ++block) {
    T* const at_source = As<T>(arrays.source) + block * source_size_;
    T* const at_destination = As<T>(arrays.destination) + block * destination_size_;
    if (kind_ == Kind::kBackwardData) {
      Widen(at_destination, destination, destination_size_);
      primitive_->Run(inside, scratch.data());
      Narrow(source, at_source, source_size_);
    } else {
      Widen(at_source, source, source_size_);
      primitive_->Run(inside, scratch.data());
      Finish(arrays, block * destination_size_, destination);
    }
  }
}

// Stores the results of a block, from the element `first` on, after the operations of inference.
template <typename T>
void Widened<T>::Finish(const Arrays& arrays, int64_t first, float* results) const {
  T* const to = As<T>(arrays.destination) + first;
  if (kind_ != Kind::kInference) return Narrow(results, to, destination_size_);
  const T* const addend = As<T>(arrays.addend);
  Tile<T> addends(channels_);
  for (int64_t at = 0; at < destination_size_; at += channels_) {
    float* const values = results + at;
    if (arrays.scale) Scale(values, As<float>(arrays.scale), channels_);
    AddTo(values, As<float>(arrays.bias), channels_);
    if (addend) AddTo(values, addends.Read(addend + first + at, channels_), channels_);
    if (rectifies_) Rectify(values, channels_);
    Narrow(values, to + at, channels_);
  }
}

// Sums the gradient over some blocks, in the primitive's layout.
template <typename T>
void Widened<T>::SumWeights(const Arrays& arrays, Range blocks, float* sum,
                            Workspaces& workspaces) const {
  const ThreadCount guard(static_cast<int>(omp_threads_));
  const int64_t count = static_cast<int64_t>(packed_bytes() / sizeof(float));
  const bool adds = blocks.last - blocks.first > 1;
  const auto activations =
      workspaces.Acquire((source_size_ + destination_size_ + (adds ? count : 0)) * sizeof(float));
  const auto scratch = workspaces.Acquire(primitive_->workspace_bytes());
  float* const source = As<float>(activations.data());
  float* const destination = source + source_size_;
  float* const more = destination + destination_size_;
  for (int64_t block = blocks.first; block < blocks.last; ++block) {
    const bool is_first = block == blocks.first;
    Widen(As<T>(arrays.source) + block * source_size_, source, source_size_);
    Widen(As<T>(arrays.destination) + block * destination_size_, destination, destination_size_);
    primitive_->Run({reinterpret_cast<char*>(source),
                     reinterpret_cast<char*>(is_first ? sum : more),
                     reinterpret_cast<char*>(destination)},
                    scratch.data());
    if (!is_first) AddTo(sum, more, count);
  }
}

template <typename T>
void Widened<T>::SumOverBlocks(const Arrays& arrays, Workspaces& workspaces,
                               xla::ffi::ThreadPool& pool) const {
  const int64_t parts = std::min(threads_, blocks_);
  const int64_t count = static_cast<int64_t>(packed_bytes() / sizeof(float));
  const bool reorders = primitive_->reorders_weights();
  const auto workspace =
      workspaces.Acquire((parts * count + (reorders ? weights_size_ : 0)) * sizeof(float));
  float* const sums = As<float>(workspace.data());
  ParallelFor(pool, parts, [&](int64_t part) {
    SumWeights(arrays, Share(blocks_, part, parts), sums + part * count, workspaces);
  });
  for (int64_t part = 1; part < parts; ++part) AddTo(sums, sums + part * count, count);
  float* const outside = reorders ? sums + parts * count : sums;
  const ThreadCount guard(static_cast<int>(omp_threads_));
  if (reorders) primitive_->ReorderWeights(sums, outside);
  Narrow(outside, As<T>(arrays.weights), weights_size_);
}

template class Widened<Bfloat16>;
template class Widened<Float16>;

}  // namespace convoy
