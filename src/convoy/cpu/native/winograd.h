// Convolutions of 3x3 with 2.25 times fewer products.
#pragma once

#include <cstdint>
#include <vector>

#include "execution.h"
#include "parallel.h"

namespace convoy {

// Winograd's F(2x2, 3x3). Four by four pixels of the source, which overlap by two with the next,
// give two by two of the result. Both and the weights are brought into a domain where that is 16
// single products:
//
//     result = At [(G weights Gt) * (Bt source B)] A
//
// with matrices of 0, 1, -1 and 1/2. Summed over the channels, each of the 16 is a product of two
// matrices, tiles x channels in and channels in x channels out. The gradient of the weights is the
// transpose,
//
//     gradient = Gt [(A result's At) * (Bt source B)] G
//
// All is added up in float32, and rounded about as a direct convolution is.
class Winograd : public Execution {
 public:
  // Whether it can and should be done in this way on this machine.
  static bool Takes(const Convolution& convolution);

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
  // Rows and columns of one tile in its image, and the image.
  struct Place {
    int64_t image, row, column;
  };
  // Of one tile: `width` channels out from `first` on, and how far it is to the next of the planes.
  struct Products {
    const float* data;
    int64_t plane, first, width;
  };
  // How far apart weights (or their gradients) are along each axis.
  struct Steps {
    int64_t in, out, row, column;
  };

  Place PlaceOf(int64_t tile) const;
  void TransformWeights(const float* weights, Range columns, float* packed) const;
  void TransformSource(const float* source, int64_t tile, float* to, int64_t plane) const;
  void TransformGradient(const float* gradient, int64_t tile, float* to, int64_t plane) const;
  void WriteResult(const Products& products, int64_t tile, const float* bias, const float* addend,
                   float* result) const;
  void WriteWeights(const float* from, int64_t in, float* weights) const;

  int64_t Parts() const;
  int64_t BlockOf(int64_t tiles) const;
  template <typename Work>
  void ForBlocks(Range tiles, int64_t block, const Work& work) const;
  void Convolve(const float* source, const float* packed, float* result, const float* bias,
                const float* addend, Workspaces& workspaces, xla::ffi::ThreadPool& pool) const;
  void SumWeights(const float* source, const float* gradient, float* weights,
                  Workspaces& workspaces, xla::ffi::ThreadPool& pool) const;

  Kind kind_;
  int64_t threads_, batch_;
  Images source_, result_;
  int64_t padding_row_, padding_column_;
  Steps steps_;
  bool rectifies_;
  int64_t tile_rows_, tile_columns_, tiles_;
  int64_t block_;  // of tiles that are best worked on at a time
  std::vector<float> zeros_;
};

}  // namespace convoy
