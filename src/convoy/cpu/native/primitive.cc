// Creation and execution of oneDNN's primitives for the four kinds of convolution.
//
// Layouts of activations are those of XLA's arrays, except in the gradient of the weights, where
// blocked channels are often faster. The layout of the weights is always oneDNN's choice.
#include "primitive.h"

#include <limits>
#include <unordered_map>

#include "onednn_context.h"

namespace convoy {
namespace {

using dnnl::memory;

constexpr size_t kAlignment = 64;

memory::desc Any(const memory::desc& desc) {
  return memory::desc(desc.get_dims(), desc.get_data_type(), memory::format_tag::any);
}

// Forward and backward data are fastest on the layout as it is (channels last has kernels of its
// own). The gradient of the weights gains from blocked channels, which costs a copy of source and
// destination: worth it where there are enough operations for each element copied. The bound is
// where both took the same time on AVX2; groups have few operations by nature.
bool PrefersBlockedActivations(const Convolution& it) {
  if (it.kind != Kind::kBackwardWeights || it.grouped) return false;
  double taps = 1;
  for (auto size = it.weights.begin() + 2; size != it.weights.end(); ++size) taps *= *size;
  const double out = it.weights[0], in = it.weights[1];
  return taps * out * in / (out + in) >= 128;
}

// A ReLU that keeps NaN. oneDNN's own turns NaN into zero, which would hide that a network has
// diverged. `x * clip(x * largest, 0, 1)` does not, and costs the same.
void AppendRectifier(dnnl::post_ops& after) {
  after.append_eltwise(dnnl::algorithm::eltwise_hardswish, std::numeric_limits<float>::max(), 0.0f);
}

// A float32 number for each channel of the destination.
memory::desc ByChannel(const Convolution& it) {
  memory::dims sizes(it.dst.size(), 1), strides(it.dst.size(), 1);
  sizes[1] = strides[0] = it.dst[1];
  return memory::desc(sizes, memory::data_type::f32, strides);
}

// Operations of inference on the sums before they are written. In 16 bits a scale multiplied into
// the weights would be rounded, so it comes here, and the bias after it.
dnnl::primitive_attr AttributesOf(const Convolution& it, const memory::desc& dst) {
  dnnl::post_ops after;
  if (it.type != memory::data_type::f32) {
    after.append_binary(dnnl::algorithm::binary_mul, ByChannel(it));
    after.append_binary(dnnl::algorithm::binary_add, ByChannel(it));
  }
  if (it.adds) after.append_binary(dnnl::algorithm::binary_add, dst);
  if (it.rectifies) AppendRectifier(after);
  dnnl::primitive_attr attributes = OneDnnAttributes();
  attributes.set_post_ops(after);
  return attributes;
}

}  // namespace

template <typename Desc>
void Primitive::Adopt(const Desc& desc) {
  implementation_ = desc.impl_info_str();
  if (IsReference(implementation_)) {
    throw dnnl::error(dnnl_unimplemented, "only a reference implementation");
  }
  scratchpad_ = desc.scratchpad_desc();
}

Primitive::Primitive(const Convolution& it) {
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const auto attributes = OneDnnAttributes();
  const memory::desc src(it.src, it.type, it.src_strides);
  const memory::desc weights(it.weights, it.type, it.weights_strides);
  const memory::desc dst(it.dst, it.type, it.dst_strides);
  const bool blocked = PrefersBlockedActivations(it);
  const auto wanted_src = blocked ? Any(src) : src;
  const auto wanted_dst = blocked ? Any(dst) : dst;

  if (it.kind == Kind::kInference) {
    scales_ = it.type != memory::data_type::f32;
    if (scales_) {
      by_channel_ = ByChannel(it);
    } else {
      bias_ = memory::desc({it.dst[1]}, it.type, memory::format_tag::a);
    }
    adds_ = it.adds;
    const dnnl::convolution_forward::primitive_desc inference(
        OneDnnEngine(), dnnl::prop_kind::forward_inference, algorithm, src, Any(weights), bias_, dst,
        it.strides, it.dilations, it.padding_low, it.padding_high, AttributesOf(it, dst));
    Adopt(inference);
    primitive_ = dnnl::convolution_forward(inference);
    source_ = {src, inference.src_desc(), DNNL_ARG_SRC, false, {}};
    weights_ = {weights, inference.weights_desc(), DNNL_ARG_WEIGHTS, false, {}};
    destination_ = {dst, inference.dst_desc(), DNNL_ARG_DST, true, {}};
    Finish();
    return;
  }

  const dnnl::convolution_forward::primitive_desc forward(
      OneDnnEngine(), dnnl::prop_kind::forward_training, algorithm, wanted_src, Any(weights), wanted_dst,
      it.strides, it.dilations, it.padding_low, it.padding_high, attributes);
  switch (it.kind) {
    case Kind::kForward:
      Adopt(forward);
      primitive_ = dnnl::convolution_forward(forward);
      source_ = {src, forward.src_desc(), DNNL_ARG_SRC, false, {}};
      weights_ = {weights, forward.weights_desc(), DNNL_ARG_WEIGHTS, false, {}};
      destination_ = {dst, forward.dst_desc(), DNNL_ARG_DST, true, {}};
      break;
    case Kind::kBackwardData: {
      const dnnl::convolution_backward_data::primitive_desc backward(
          OneDnnEngine(), algorithm, wanted_src, Any(weights), wanted_dst, it.strides, it.dilations,
          it.padding_low, it.padding_high, forward, attributes);
      Adopt(backward);
      primitive_ = dnnl::convolution_backward_data(backward);
      source_ = {src, backward.diff_src_desc(), DNNL_ARG_DIFF_SRC, true, {}};
      weights_ = {weights, backward.weights_desc(), DNNL_ARG_WEIGHTS, false, {}};
      destination_ = {dst, backward.diff_dst_desc(), DNNL_ARG_DIFF_DST, false, {}};
      break;
    }
    case Kind::kBackwardWeights: {
      // Sums stay in float32, in which those of several parts of a batch are added.
      const memory::desc sums(it.weights, memory::data_type::f32, memory::format_tag::any);
      const dnnl::convolution_backward_weights::primitive_desc backward(
          OneDnnEngine(), algorithm, wanted_src, sums, wanted_dst, it.strides, it.dilations,
          it.padding_low, it.padding_high, forward, attributes);
      Adopt(backward);
      primitive_ = dnnl::convolution_backward_weights(backward);
      source_ = {src, backward.src_desc(), DNNL_ARG_SRC, false, {}};
      weights_ = {weights, backward.diff_weights_desc(), DNNL_ARG_DIFF_WEIGHTS, true, {}};
      destination_ = {dst, backward.diff_dst_desc(), DNNL_ARG_DIFF_DST, false, {}};
      break;
    }
    default:
      throw dnnl::error(dnnl_invalid_arguments, "unknown kind of convolution");
  }
  Finish();
}

void Primitive::Finish() {
  Connect(weights_);
  workspace_bytes_ = (scratchpad_.get_size() + kAlignment - 1) / kAlignment * kAlignment;
  for (Operand* operand : {&source_, &destination_}) Place(*operand);
}

void Primitive::Connect(Operand& operand) {
  if (operand.inside == operand.outside) return;
  const auto& from = operand.is_result ? operand.inside : operand.outside;
  const auto& to = operand.is_result ? operand.outside : operand.inside;
  const dnnl::reorder::primitive_desc desc(OneDnnEngine(), from, OneDnnEngine(), to, OneDnnAttributes());
  if (desc.scratchpad_desc().get_size() > 0) {
    throw dnnl::error(dnnl_unimplemented, "a reorder that needs a scratchpad");
  }
  operand.reorder = dnnl::reorder(desc);
}

void Primitive::Place(Operand& operand) {
  Connect(operand);
  if (!operand.reorder) return;
  operand.offset = workspace_bytes_;
  workspace_bytes_ += (operand.inside.get_size() + kAlignment - 1) / kAlignment * kAlignment;
}

void Primitive::ReorderWeights(void* from, void* to) const {
  const bool out = weights_.is_result;
  weights_.reorder.execute(
      OneDnnStream(),
      {{DNNL_ARG_FROM, memory(out ? weights_.inside : weights_.outside, OneDnnEngine(), from)},
       {DNNL_ARG_TO, memory(out ? weights_.outside : weights_.inside, OneDnnEngine(), to)}});
}

memory Primitive::Inside(const Operand& operand, void* data, char* workspace) const {
  return memory(operand.inside, OneDnnEngine(),
                operand.reorder ? workspace + operand.offset : static_cast<char*>(data));
}

void Primitive::Run(const Arrays& arrays, char* workspace) const {
  char* const source = arrays.source;
  char* const destination = arrays.destination;
  const memory inside_source = Inside(source_, source, workspace);
  const memory inside_destination = Inside(destination_, destination, workspace);
  const auto reorder = [](const Operand& operand, const memory& inside, void* data) {
    const memory outside(operand.outside, OneDnnEngine(), data);
    operand.reorder.execute(OneDnnStream(),
                            {{DNNL_ARG_FROM, operand.is_result ? inside : outside},
                             {DNNL_ARG_TO, operand.is_result ? outside : inside}});
  };
  const auto needs = [](const Operand& operand, bool is_result) {
    return operand.reorder && operand.is_result == is_result;
  };
  if (needs(source_, false)) reorder(source_, inside_source, source);
  if (needs(destination_, false)) reorder(destination_, inside_destination, destination);
  std::unordered_map<int, memory> operands = {
      {source_.name, inside_source},
      {weights_.name, memory(weights_.inside, OneDnnEngine(), arrays.weights)},
      {destination_.name, inside_destination},
      {DNNL_ARG_SCRATCHPAD, memory(scratchpad_, OneDnnEngine(), workspace)}};
  int follows = 0;  // operations in the order of `AttributesOf`
  const auto follow = [&](const memory::desc& desc, char* data) {
    operands.emplace(DNNL_ARG_ATTR_MULTIPLE_POST_OP(follows++) | DNNL_ARG_SRC_1,
                     memory(desc, OneDnnEngine(), data));
  };
  if (scales_) {
    follow(by_channel_, arrays.scale);
    follow(by_channel_, arrays.bias);
  } else if (arrays.bias) {
    operands.emplace(DNNL_ARG_BIAS, memory(bias_, OneDnnEngine(), arrays.bias));
  }
  if (adds_) follow(destination_.outside, arrays.addend);
  primitive_.execute(OneDnnStream(), operands);
  if (needs(source_, true)) reorder(source_, inside_source, source);
  if (needs(destination_, true)) reorder(destination_, inside_destination, destination);
}

}  // namespace convoy
