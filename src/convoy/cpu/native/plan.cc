#include "plan.h"

#include <cstring>
#include <unordered_map>

namespace convoy {
namespace {

using dnnl::memory;

constexpr size_t kAlignment = 64;

const dnnl::engine& Engine() {
  static const dnnl::engine* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

dnnl::stream& Stream() {
  thread_local dnnl::stream stream(Engine());
  return stream;
}

memory::desc Outside(const Convolution& it, const memory::dims& dims, const memory::dims& strides) {
  return memory::desc(dims, it.type, strides);
}

memory::desc Any(const Convolution& it, const memory::dims& dims) {
  return memory::desc(dims, it.type, memory::format_tag::any);
}

// Forward and backward data are fastest on the layout as it is (channels last has kernels of its
// own). The gradient of the weights sums over all positions and gains more from blocked channels
// than the copies cost, unless there is hardly any arithmetic to save.
bool PrefersBlockedActivations(const Convolution& it) {
  return it.kind == Kind::kBackwardWeights && !it.grouped && !it.is_pointwise();
}

// The scratchpad is ours: oneDNN's own belongs to the thread that made the primitive.
dnnl::primitive_attr Attributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

}  // namespace

template <typename Desc>
void Plan::Adopt(const Desc& desc) {
  implementation_ = desc.impl_info_str();
  if (std::strncmp(implementation_, "ref", 3) == 0) {
    throw dnnl::error(dnnl_unimplemented, "only a reference implementation");
  }
  scratchpad_ = desc.scratchpad_desc();
}

Plan::Plan(const Convolution& it) {
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const auto attributes = Attributes();
  const auto src = Outside(it, it.src, it.src_strides);
  const auto weights = Outside(it, it.weights, it.weights_strides);
  const auto dst = Outside(it, it.dst, it.dst_strides);
  const bool blocked = PrefersBlockedActivations(it);
  const auto wanted_src = blocked ? Any(it, it.src) : src;
  const auto wanted_dst = blocked ? Any(it, it.dst) : dst;
  const auto wanted_weights = Any(it, it.weights);

  const dnnl::convolution_forward::primitive_desc forward(
      Engine(), dnnl::prop_kind::forward_training, algorithm, wanted_src, wanted_weights,
      wanted_dst, it.strides, it.dilations, it.padding_low, it.padding_high, attributes);
  switch (it.kind) {
    case Kind::kForward: {
      Adopt(forward);
      primitive_ = dnnl::convolution_forward(forward);
      first_ = {src, forward.src_desc(), {}, DNNL_ARG_SRC, 0};
      second_ = {weights, forward.weights_desc(), {}, DNNL_ARG_WEIGHTS, 0};
      result_ = {dst, forward.dst_desc(), {}, DNNL_ARG_DST, 0};
      break;
    }
    case Kind::kBackwardData: {
      const dnnl::convolution_backward_data::primitive_desc backward(
          Engine(), algorithm, wanted_src, wanted_weights, wanted_dst, it.strides, it.dilations,
          it.padding_low, it.padding_high, forward, attributes);
      Adopt(backward);
      primitive_ = dnnl::convolution_backward_data(backward);
      first_ = {dst, backward.diff_dst_desc(), {}, DNNL_ARG_DIFF_DST, 0};
      second_ = {weights, backward.weights_desc(), {}, DNNL_ARG_WEIGHTS, 0};
      result_ = {src, backward.diff_src_desc(), {}, DNNL_ARG_DIFF_SRC, 0};
      break;
    }
    case Kind::kBackwardWeights: {
      const dnnl::convolution_backward_weights::primitive_desc backward(
          Engine(), algorithm, wanted_src, wanted_weights, wanted_dst, it.strides, it.dilations,
          it.padding_low, it.padding_high, forward, attributes);
      Adopt(backward);
      primitive_ = dnnl::convolution_backward_weights(backward);
      first_ = {src, backward.src_desc(), {}, DNNL_ARG_SRC, 0};
      second_ = {dst, backward.diff_dst_desc(), {}, DNNL_ARG_DIFF_DST, 0};
      result_ = {weights, backward.diff_weights_desc(), {}, DNNL_ARG_DIFF_WEIGHTS, 0};
      break;
    }
    default:
      throw dnnl::error(dnnl_invalid_arguments, "unknown kind of convolution");
  }
  Place(first_, false);
  Place(second_, false);
  Place(result_, true);
  scratchpad_offset_ = workspace_bytes_;
  workspace_bytes_ += scratchpad_.get_size();
}

void Plan::Place(Operand& operand, bool is_result) {
  if (operand.inside == operand.outside) return;
  const auto& from = is_result ? operand.inside : operand.outside;
  const auto& to = is_result ? operand.outside : operand.inside;
  const dnnl::reorder::primitive_desc desc(Engine(), from, Engine(), to, Attributes());
  if (desc.scratchpad_desc().get_size() > 0) {
    throw dnnl::error(dnnl_unimplemented, "a reorder that needs a scratchpad");
  }
  operand.reorder = dnnl::reorder(desc);
  operand.offset = workspace_bytes_;
  workspace_bytes_ += (operand.inside.get_size() + kAlignment - 1) / kAlignment * kAlignment;
}

memory Plan::Enter(const Operand& operand, void* data, char* workspace) const {
  memory outside(operand.outside, Engine(), data);
  if (!operand.reorder) return outside;
  memory inside(operand.inside, Engine(), workspace + operand.offset);
  operand.reorder.execute(Stream(), {{DNNL_ARG_FROM, outside}, {DNNL_ARG_TO, inside}});
  return inside;
}

void Plan::Run(const void* first, const void* second, void* result, Workspaces& workspaces) const {
  const auto workspace = workspaces.Acquire(workspace_bytes_);
  char* const base = workspace.data();
  // oneDNN takes no pointers to const, and writes through none of these two.
  const memory first_in = Enter(first_, const_cast<void*>(first), base);
  const memory second_in = Enter(second_, const_cast<void*>(second), base);
  const memory result_outside(result_.outside, Engine(), result);
  const memory result_inside =
      result_.reorder ? memory(result_.inside, Engine(), base + result_.offset) : result_outside;
  primitive_.execute(Stream(), {{first_.name, first_in},
                                {second_.name, second_in},
                                {result_.name, result_inside},
                                {DNNL_ARG_SCRATCHPAD,
                                 memory(scratchpad_, Engine(), base + scratchpad_offset_)}});
  if (result_.reorder) {
    result_.reorder.execute(Stream(),
                            {{DNNL_ARG_FROM, result_inside}, {DNNL_ARG_TO, result_outside}});
  }
}

}  // namespace convoy
