// Matrix products by oneDNN, divided among XLA's threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "dnnl.hpp"
#include "workspace.h"
#include "xla/ffi/api/ffi.h"

namespace convoy {

// Sizes and strides (in elements) of
//
//     c[i, j, row, column] = sum over k of  a[i, j, row, k] * b[i, j, k, column]
//
// `describe` in `matrix_product.py` writes it as one array of integers, in the order of the fields.
// Axes of the batch that a product does not have are of size one.
struct ProductShape {
  // Batch, batch, rows, columns (of the two matrices as the strides are named).
  using Strides = std::array<int64_t, 4>;

  dnnl::memory::data_type type;
  std::array<int64_t, 2> batch;
  int64_t rows, inner, columns;
  Strides a, b, c;

  // Throws std::invalid_argument if the array does not have the length of a description.
  static ProductShape Parse(const int64_t* description, size_t size);
};

// Immutable after construction, so that any number of threads may run it at once.
//
// The result is cut into one part per thread, along an axis of the batch, its rows or its columns,
// so that no sums are added up at the end. Sums are in float32, and a result is rounded once.
class MatrixProduct {
 public:
  // Throws dnnl::error if oneDNN has no fast implementation.
  MatrixProduct(const ProductShape& shape, int64_t threads);

  void Run(const char* a, const char* b, char* c, Workspaces& workspaces,
           xla::ffi::ThreadPool& pool) const;

  // Valid for the lifetime of the process.
  const char* implementation() const { return implementation_; }

 private:
  struct Part {
    dnnl::memory::desc a, b, c, scratchpad;
    dnnl::matmul product;
  };

  Part MakePart(const ProductShape& shape);

  bool swapped_ = false;  // c is computed as the transposed product of b and a
  int64_t parts_, part_size_;
  std::array<size_t, 3> steps_;  // bytes of a, b and c from one part to the next
  Part part_;
  std::unique_ptr<const Part> last_;  // null if all parts are equal
  const char* implementation_ = "";
};

}  // namespace convoy
