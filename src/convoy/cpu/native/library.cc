// What the shared library offers: XLA's handlers, and a few questions for Python to ask.

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "cache.h"
#include "convolution.h"
#include "instruction_set.h"
#include "plan.h"
#include "threads.h"
#include "workspace.h"
#include "xla/ffi/api/ffi.h"

namespace convoy {
namespace {

namespace ffi = xla::ffi;

// More than the distinct convolutions of several networks; a plan takes some tens of kilobytes.
constexpr size_t kPlans = 512;

// Never destroyed: XLA's threads may outlive static destructors.
Cache<Plan>& Plans() {
  static auto* const plans = new Cache<Plan>(kPlans);
  return *plans;
}

Workspaces& SharedWorkspaces() {
  static auto* const workspaces = new Workspaces();
  return *workspaces;
}

std::shared_ptr<const Plan> FindPlan(const int64_t* description, size_t size, int64_t threads) {
  std::vector<int64_t> key(description, description + size);
  key.push_back(threads);
  return Plans().Get(key, [&] {
    return std::make_shared<const Plan>(Convolution::Parse(description, size));
  });
}

ffi::Error Convolve(ffi::AnyBuffer first, ffi::AnyBuffer second, ffi::Result<ffi::AnyBuffer> result,
                    ffi::Span<const int64_t> description, int64_t threads) {
  try {
    const ThreadCount guard(static_cast<int>(threads));
    const auto plan = FindPlan(description.begin(), description.size(), threads);
    plan->Run(first.untyped_data(), second.untyped_data(), result->untyped_data(),
              SharedWorkspaces());
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("oneDNN convolution: ") + error.what());
  }
}

}  // namespace
}  // namespace convoy

XLA_FFI_DEFINE_HANDLER_SYMBOL(convoy_convolution, convoy::Convolve,
                              xla::ffi::Ffi::Bind()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attr<xla::ffi::Span<const int64_t>>("description")
                                  .Attr<int64_t>("threads"));

extern "C" {

// Chooses what oneDNN may use. To be called once, before anything else.
void convoy_initialise() {
  convoy::HoldOneDnnToWhatRuns();
  // The plans are cached here, with a bound on their number; twice would be once too often.
  dnnl::set_primitive_cache_capacity(0);
}

int convoy_onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return version->major * 10000 + version->minor * 100 + version->patch;
}

int convoy_instruction_set() { return static_cast<int>(dnnl::get_effective_cpu_isa()); }

// Name of the implementation oneDNN has for this convolution, or null if it has none worth using.
// The plan is kept, so that the first call finds it. The name is good for the process's lifetime.
const char* convoy_convolution_implementation(const int64_t* description, int64_t size,
                                              int64_t threads) {
  try {
    const convoy::ThreadCount guard(static_cast<int>(threads));
    return convoy::FindPlan(description, size, threads)->implementation();
  } catch (const std::exception&) {
    return nullptr;
  }
}

int64_t convoy_plans() { return static_cast<int64_t>(convoy::Plans().size()); }

}  // extern "C"
