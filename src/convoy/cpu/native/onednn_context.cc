#include "onednn_context.h"

#include <cstring>

namespace convoy {

const dnnl::engine& OneDnnEngine() {
  // Never destroyed: XLA's threads may outlive static destructors.
  static const auto* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

dnnl::stream& OneDnnStream() {
  thread_local dnnl::stream stream(OneDnnEngine());
  return stream;
}

dnnl::primitive_attr OneDnnAttributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

bool IsReference(const char* implementation) { return std::strncmp(implementation, "ref", 3) == 0; }

}  // namespace convoy
