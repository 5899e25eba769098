#include "matrix_product.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "onednn_context.h"
#include "parallel.h"
#include "threads.h"

namespace convoy {
namespace {

using dnnl::memory;

// Operations below which a further thread takes longer to wake than it saves.
constexpr int64_t kOperationsPerThread = int64_t{1} << 20;
// Rows and columns of a part are a multiple of this, which whole vectors fill.
constexpr int64_t kRound = 16;

enum Axis { kOuterBatch, kInnerBatch, kRows, kColumns };

int64_t& SizeOf(ProductShape& shape, Axis axis) {
  switch (axis) {
    case kOuterBatch:
      return shape.batch[0];
    case kInnerBatch:
      return shape.batch[1];
    case kRows:
      return shape.rows;
    default:
      return shape.columns;
  }
}

// oneDNN writes rows. A result in columns is that of the transposed product:
//
//     c = a * b    <=>    c^T = b^T * a^T
bool IsInColumns(const ProductShape& it) {
  return it.c[kColumns] != 1 && it.columns > 1 && (it.c[kRows] == 1 || it.rows == 1);
}

ProductShape Transposed(ProductShape it) {
  std::swap(it.rows, it.columns);
  std::swap(it.a, it.b);
  for (ProductShape::Strides* strides : {&it.a, &it.b, &it.c}) {
    std::swap((*strides)[kRows], (*strides)[kColumns]);
  }
  return it;
}

int64_t PartsOf(const ProductShape& it, int64_t threads) {
  const int64_t operations = it.batch[0] * it.batch[1] * it.rows * it.inner * it.columns;
  return std::clamp<int64_t>(operations / kOperationsPerThread, 1, threads);
}

// The longer axis of the batch if it has an element for each part, otherwise the longer axis of the
// result.
Axis CutAxis(const ProductShape& it, int64_t parts) {
  const Axis batch = it.batch[0] >= it.batch[1] ? kOuterBatch : kInnerBatch;
  if (it.batch[batch] >= parts && it.batch[batch] > 1) return batch;
  return it.rows >= it.columns ? kRows : kColumns;
}

memory::desc Operand(const ProductShape& it, int64_t rows, int64_t columns,
                     const ProductShape::Strides& strides) {
  if (it.batch[0] * it.batch[1] == 1) {
    return memory::desc({rows, columns}, it.type, memory::dims{strides[2], strides[3]});
  }
  return memory::desc({it.batch[0], it.batch[1], rows, columns}, it.type,
                      memory::dims(strides.begin(), strides.end()));
}

}  // namespace

ProductShape ProductShape::Parse(const int64_t* description, size_t size) {
  constexpr size_t kNumbers = 6 + 3 * 4;
  if (size != kNumbers) throw std::invalid_argument("not the description of a matrix product");
  ProductShape it;
  it.type = static_cast<memory::data_type>(description[0]);
  it.batch = {description[1], description[2]};
  it.rows = description[3];
  it.inner = description[4];
  it.columns = description[5];
  const int64_t* next = description + 6;
  for (Strides* strides : {&it.a, &it.b, &it.c}) {
    std::copy_n(next, strides->size(), strides->begin());
    next += strides->size();
  }
  return it;
}

MatrixProduct::MatrixProduct(const ProductShape& given, int64_t threads) {
  swapped_ = IsInColumns(given);
  ProductShape shape = swapped_ ? Transposed(given) : given;
  const int64_t wanted = PartsOf(shape, threads);
  const Axis axis = CutAxis(shape, wanted);
  const int64_t size = SizeOf(shape, axis);
  const int64_t round = axis == kRows || axis == kColumns ? kRound : 1;
  part_size_ = (size + wanted * round - 1) / (wanted * round) * round;
  part_size_ = std::min(part_size_, size);
  parts_ = (size + part_size_ - 1) / part_size_;

  const size_t bytes = memory::data_type_size(shape.type);
  const int64_t a_step = axis == kColumns ? 0 : shape.a[axis];
  const int64_t b_step = axis == kRows ? 0 : shape.b[axis];
  steps_ = {a_step * part_size_ * bytes, b_step * part_size_ * bytes,
            shape.c[axis] * part_size_ * bytes};

  const ThreadCount guard(1);
  const int64_t rest = size - (parts_ - 1) * part_size_;
  SizeOf(shape, axis) = part_size_;
  part_ = MakePart(shape);
  if (rest == part_size_) return;
  SizeOf(shape, axis) = rest;
  last_ = std::make_unique<const Part>(MakePart(shape));
}

MatrixProduct::Part MatrixProduct::MakePart(const ProductShape& shape) {
  Part part;
  part.a = Operand(shape, shape.rows, shape.inner, shape.a);
  part.b = Operand(shape, shape.inner, shape.columns, shape.b);
  part.c = Operand(shape, shape.rows, shape.columns, shape.c);
  const dnnl::matmul::primitive_desc desc(OneDnnEngine(), part.a, part.b, part.c,
                                          OneDnnAttributes());
  implementation_ = desc.impl_info_str();
  if (IsReference(implementation_)) {
    throw dnnl::error(dnnl_unimplemented, "only a reference implementation");
  }
  part.scratchpad = desc.scratchpad_desc();
  part.product = dnnl::matmul(desc);
  return part;
}

void MatrixProduct::Run(const char* a, const char* b, char* c, Workspaces& workspaces,
                        xla::ffi::ThreadPool& pool) const {
  if (swapped_) std::swap(a, b);
  const auto at = [](const char* data, size_t offset) { return const_cast<char*>(data) + offset; };
  ParallelFor(pool, parts_, [&](int64_t i) {
    const Part& part = i == parts_ - 1 && last_ ? *last_ : part_;
    const ThreadCount guard(1);
    const auto scratch = workspaces.Acquire(part.scratchpad.get_size());
    part.product.execute(
        OneDnnStream(),
        {{DNNL_ARG_SRC, memory(part.a, OneDnnEngine(), at(a, i * steps_[0]))},
         {DNNL_ARG_WEIGHTS, memory(part.b, OneDnnEngine(), at(b, i * steps_[1]))},
         {DNNL_ARG_DST, memory(part.c, OneDnnEngine(), at(c, i * steps_[2]))},
         {DNNL_ARG_SCRATCHPAD, memory(part.scratchpad, OneDnnEngine(), scratch.data())}});
  });
}

}  // namespace convoy
