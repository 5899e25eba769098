// What all uses of oneDNN share: its engine, a stream for each thread, and attributes.
#pragma once

#include "dnnl.hpp"

namespace convoy {

const dnnl::engine& OneDnnEngine();

// That of the calling thread.
dnnl::stream& OneDnnStream();

// Convoy provides the scratchpad: oneDNN's own belongs to the thread that created the primitive.
dnnl::primitive_attr OneDnnAttributes();

// Whether an implementation is one of oneDNN's references.
bool IsReference(const char* implementation);

}  // namespace convoy
