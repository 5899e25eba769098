// Parsing of a convolution's description.
//
// The array comes from a compiled program, which may have been read from a file. So its length is
// checked at every number.
#include "convolution.h"

#include <algorithm>
#include <stdexcept>

namespace convoy {
namespace {

class Reader {
 public:
  Reader(const int64_t* at, size_t size) : at_(at), end_(at + size) {}

  int64_t One() {
    if (at_ == end_) throw std::invalid_argument("description of a convolution is too short");
    return *at_++;
  }

  dnnl::memory::dims Many(int64_t count) {
    dnnl::memory::dims values(count);
    std::generate(values.begin(), values.end(), [this] { return One(); });
    return values;
  }

  void ExpectEnd() const {
    if (at_ != end_) throw std::invalid_argument("description of a convolution is too long");
  }

 private:
  const int64_t* at_;
  const int64_t* end_;
};

}  // namespace

Convolution Convolution::Parse(const int64_t* description, size_t size) {
  Reader read(description, size);
  Convolution it;
  it.kind = static_cast<Kind>(read.One());
  it.type = static_cast<dnnl::memory::data_type>(read.One());
  const int64_t spatial = read.One();
  it.grouped = read.One() != 0;
  const int64_t rank = 2 + spatial;
  it.src = read.Many(rank);
  it.src_strides = read.Many(rank);
  it.weights = read.Many(rank + it.grouped);
  it.weights_strides = read.Many(rank + it.grouped);
  it.dst = read.Many(rank);
  it.dst_strides = read.Many(rank);
  it.strides = read.Many(spatial);
  it.dilations = read.Many(spatial);
  it.padding_low = read.Many(spatial);
  it.padding_high = read.Many(spatial);
  if (it.kind == Kind::kInference) {
    it.adds = read.One() != 0;
    it.rectifies = read.One() != 0;
  }
  read.ExpectEnd();
  return it;
}

bool IsDenseChannelsLast(const dnnl::memory::dims& sizes, const dnnl::memory::dims& strides) {
  int64_t expected = 1;
  const auto is_next = [&](size_t axis) {
    const bool fits = strides[axis] == expected;
    expected *= sizes[axis];
    return fits;
  };
  if (!is_next(1)) return false;
  for (size_t axis = sizes.size() - 1; axis > 1; --axis) {
    if (!is_next(axis)) return false;
  }
  return is_next(0);
}

}  // namespace convoy
