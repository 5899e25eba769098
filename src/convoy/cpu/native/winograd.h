// Convolutions with 3x3 kernels by Winograd's method, with 2.25x fewer multiplications.
#pragma once

#include <cstdint>
#include <vector>

#include "execution.h"
#include "parallel.h"
#include "storage.h"

namespace convoy {

// Winograd's F(2x2, 3x3). A tile of 4x4 pixels of the source, which overlaps its neighbours by two
// pixels, gives 2x2 pixels of the result. Source and weights are transformed into a domain in which
// this takes 16 multiplications instead of 36:
//
//     result = At [(G weights Gt) * (Bt source B)] A
//
// where * is elementwise, and
//
//          | 1  0 -1  0 |         | 1    0    0  |
//     Bt = | 0  1  1  0 |     G = | 1/2  1/2 1/2 |     At = | 1  1  1  0 |
//          | 0 -1  1  0 |         | 1/2 -1/2 1/2 |          | 0  1 -1 -1 |
//          | 0  1  0 -1 |         | 0    0    1  |
//
// Summed over the channels, each of the 16 elements ("planes") is a product of two matrices, (tiles
// x channels in) and (channels in x channels out). The gradient of the weights is the transpose,
//
//     gradient = Gt [(A (gradient of the result) At) * (Bt source B)] G
//
// Sums are in float32; the rounding error is about that of a direct convolution. Arrays are stored
// as T (float, Bfloat16 or Float16); transformed tiles and weights are always in float32.

// Whether this method can run a convolution on this machine, and is the fastest in float32.
bool WinogradTakes(const Convolution& convolution);

template <typename T>
class Winograd : public Execution {
 public:
  Winograd(const Convolution& convolution, int64_t threads);

  void Run(const Arrays& arrays, Workspaces& workspaces,
           xla::ffi::ThreadPool& pool) const override;
  void Pack(char* weights, char* packed) const override;
  size_t packed_bytes() const override;
  const char* implementation() const override;

 private:
  struct Images {
    int64_t height, width, channels;
  };
  // The image of a tile, and its first row and column in the result.
  struct Place {
    int64_t image, row, column;
  };
  // Products of one tile: `width` channels out, from `first` on; planes are `plane` elements apart.
  struct Products {
    const float* data;
    int64_t plane, first, width;
  };
  // Operands of inference; null if they are missing.
  struct Epilogue {
    const float* scale;
    const float* bias;
    const T* addend;
  };
  // Strides of the weights (or their gradient) along each axis.
  struct Steps {
    int64_t in, out, row, column;
  };

  Place PlaceOf(int64_t tile) const;
  void TransformWeights(const T* weights, Range columns, float* packed) const;
  void TransformSource(const T* source, int64_t tile, float* to, int64_t plane) const;
  void TransformGradient(const T* gradient, int64_t tile, float* to, int64_t plane) const;
  void WriteResult(const Products& products, int64_t tile, const Epilogue& epilogue,
                   T* result) const;
  void WriteWeights(const float* from, int64_t in, T* weights) const;

  int64_t Parts() const;
  int64_t BlockOf(int64_t tiles) const;
  template <typename Work>
  void ForBlocks(Range tiles, int64_t block, const Work& work) const;
  void Convolve(const T* source, const float* packed, T* result, const Epilogue& epilogue,
                Workspaces& workspaces, xla::ffi::ThreadPool& pool) const;
  void SumWeights(const T* source, const T* gradient, T* weights, Workspaces& workspaces,
                  xla::ffi::ThreadPool& pool) const;

  Kind kind_;
  int64_t threads_, batch_;
  Images source_, result_;
  int64_t padding_row_, padding_column_;
  Steps steps_;
  bool rectifies_;
  int64_t tile_rows_, tile_columns_, tiles_;
  int64_t block_;  // preferred number of tiles in a block
  std::vector<T> zeros_;
};

}  // namespace convoy
