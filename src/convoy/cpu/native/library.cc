// The interface of the shared library: handlers that XLA calls, and functions that Python calls.
//
// XLA calls a handler with buffers, a description and a number of threads. The description is the
// key of a cache, whose values hold the primitives of oneDNN or Convoy's own kernels.

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cache.h"
#include "convolution.h"
#include "execution.h"
#include "instruction_set.h"
#include "matrix_product.h"
#include "own_core.h"
#include "pooling.h"
#include "storage.h"
#include "workspace.h"
#include "xla/ffi/api/ffi.h"

namespace convoy {
namespace {

namespace ffi = xla::ffi;

// More than the distinct convolutions of several networks. Each takes some tens of kilobytes.
constexpr size_t kExecutions = 512;

// Never destroyed: XLA's threads may outlive static destructors.
Cache<Execution>& Executions() {
  static auto* const executions = new Cache<Execution>(kExecutions);
  return *executions;
}

Workspaces& SharedWorkspaces() {
  static auto* const workspaces = new Workspaces();
  return *workspaces;
}

Cache<MatrixProduct>& MatrixProducts() {
  static auto* const products = new Cache<MatrixProduct>(kExecutions);
  return *products;
}

std::vector<int64_t> KeyOf(const int64_t* description, size_t size, int64_t threads) {
  std::vector<int64_t> key(description, description + size);
  key.push_back(threads);
  return key;
}

std::shared_ptr<const Execution> Find(const int64_t* description, size_t size, int64_t threads) {
  return Executions().Get(KeyOf(description, size, threads), [&] {
    return std::shared_ptr<const Execution>(
        MakeExecution(Convolution::Parse(description, size), threads));
  });
}

std::shared_ptr<const MatrixProduct> FindProduct(const int64_t* description, size_t size,
                                                 int64_t threads) {
  return MatrixProducts().Get(KeyOf(description, size, threads), [&] {
    return std::make_shared<const MatrixProduct>(ProductShape::Parse(description, size), threads);
  });
}

ffi::Error Multiply(ffi::ThreadPool pool, int32_t device, ffi::AnyBuffer a, ffi::AnyBuffer b,
                    ffi::Result<ffi::AnyBuffer> c, ffi::Span<const int64_t> description,
                    int64_t threads, bool own_core) {
  try {
    const OwnCore core(device, own_core);
    const auto product = FindProduct(description.begin(), description.size(), threads);
    product->Run(static_cast<const char*>(a.untyped_data()),
                 static_cast<const char*>(b.untyped_data()), static_cast<char*>(c->untyped_data()),
                 SharedWorkspaces(), pool);
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("oneDNN matrix product: ") + error.what());
  }
}

// Of source, weights and destination, in this order, `first` and `second` are the two that the kind
// of convolution reads, and `result` is the third.
ffi::Error Convolve(ffi::ThreadPool pool, int32_t device, ffi::AnyBuffer first,
                    ffi::AnyBuffer second, ffi::Result<ffi::AnyBuffer> result,
                    ffi::Span<const int64_t> description, int64_t threads, bool own_core) {
  try {
    const OwnCore core(device, own_core);
    const auto execution = Find(description.begin(), description.size(), threads);
    char* const a = static_cast<char*>(first.untyped_data());
    char* const b = static_cast<char*>(second.untyped_data());
    char* const c = static_cast<char*>(result->untyped_data());
    switch (static_cast<Kind>(description[0])) {
      case Kind::kForward:
        execution->Run({a, b, c}, SharedWorkspaces(), pool);
        break;
      case Kind::kBackwardData:
        execution->Run({c, b, a}, SharedWorkspaces(), pool);
        break;
      case Kind::kBackwardWeights:
        execution->Run({a, c, b}, SharedWorkspaces(), pool);
        break;
      case Kind::kInference:
        return ffi::Error::InvalidArgument("inference is another call");
    }
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("oneDNN convolution: ") + error.what());
  }
}

ffi::Error PackWeights(ffi::AnyBuffer weights, ffi::Result<ffi::AnyBuffer> packed,
                       ffi::Span<const int64_t> description, int64_t threads) {
  try {
    const auto execution = Find(description.begin(), description.size(), threads);
    if (packed->size_bytes() < execution->packed_bytes()) {
      return ffi::Error::InvalidArgument("packed weights need more room");
    }
    execution->Pack(static_cast<char*>(weights.untyped_data()),
                    static_cast<char*>(packed->untyped_data()));
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("oneDNN weights: ") + error.what());
  }
}

// `scale` and `addend` have no elements if they are missing.
ffi::Error ConvolveFused(ffi::ThreadPool pool, int32_t device, ffi::AnyBuffer source,
                         ffi::AnyBuffer packed, ffi::Buffer<ffi::F32> scale,
                         ffi::Buffer<ffi::F32> bias, ffi::AnyBuffer addend,
                         ffi::Result<ffi::AnyBuffer> result, ffi::Span<const int64_t> description,
                         int64_t threads, bool own_core) {
  try {
    const OwnCore core(device, own_core);
    const auto execution = Find(description.begin(), description.size(), threads);
    if (packed.size_bytes() < execution->packed_bytes()) {
      return ffi::Error::InvalidArgument("weights are not packed for this convolution");
    }
    const auto data = [](const auto& buffer) -> char* {
      return buffer.element_count() ? static_cast<char*>(buffer.untyped_data()) : nullptr;
    };
    execution->Run({data(source), data(packed), data(*result), data(scale), data(bias),
                    data(addend)},
                   SharedWorkspaces(), pool);
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("oneDNN inference: ") + error.what());
  }
}

template <typename T>
T* Data(const ffi::AnyBuffer& buffer) {
  return static_cast<T*>(buffer.untyped_data());
}

// Calls `work` with the pooling and a number of the type of its arrays.
template <typename Work>
ffi::Error WithPooling(ffi::Span<const int64_t> description, ffi::DataType type,
                       const Work& work) {
  try {
    const auto pooling = Pooling::Parse(description.begin(), description.size());
    WithStorage(type, [&](auto number) { work(pooling, number); });
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("pooling: ") + error.what());
  }
}

ffi::Error PoolMaxima(ffi::ThreadPool pool, ffi::AnyBuffer operand,
                      ffi::Result<ffi::AnyBuffer> result, ffi::Span<const int64_t> description,
                      int64_t threads) {
  return WithPooling(description, operand.element_type(), [&](const Pooling& it, auto number) {
    using T = decltype(number);
    MaxPool(it, Data<const T>(operand), Data<T>(*result), threads, pool);
  });
}

ffi::Error PoolSums(ffi::ThreadPool pool, ffi::AnyBuffer operand,
                    ffi::Result<ffi::AnyBuffer> result, ffi::Span<const int64_t> description,
                    int64_t threads) {
  return WithPooling(description, operand.element_type(), [&](const Pooling& it, auto number) {
    using T = decltype(number);
    SumPool(it, Data<const T>(operand), Data<T>(*result), threads, pool);
  });
}

ffi::Error PoolGradient(ffi::ThreadPool pool, ffi::AnyBuffer source, ffi::AnyBuffer operand,
                        ffi::Result<ffi::AnyBuffer> result, ffi::Span<const int64_t> description,
                        int64_t threads) {
  return WithPooling(description, operand.element_type(), [&](const Pooling& it, auto number) {
    using T = decltype(number);
    MaxPoolGradient(it, Data<const T>(source), Data<const T>(operand), Data<T>(*result), threads,
                    pool);
  });
}

}  // namespace
}  // namespace convoy

#define CONVOY_POOLING(arguments)                 \
  arguments.Ret<xla::ffi::AnyBuffer>()            \
      .Attr<xla::ffi::Span<const int64_t>>("description") \
      .Attr<int64_t>("threads")

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    convoy_max_pool, convoy::PoolMaxima,
    CONVOY_POOLING(
        xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>().Arg<xla::ffi::AnyBuffer>()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    convoy_sum_pool, convoy::PoolSums,
    CONVOY_POOLING(
        xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>().Arg<xla::ffi::AnyBuffer>()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    convoy_max_pool_gradient, convoy::PoolGradient,
    CONVOY_POOLING(xla::ffi::Ffi::Bind()
                       .Ctx<xla::ffi::ThreadPool>()
                       .Arg<xla::ffi::AnyBuffer>()
                       .Arg<xla::ffi::AnyBuffer>()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(convoy_convolution, convoy::Convolve,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Ctx<xla::ffi::DeviceOrdinal>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attr<xla::ffi::Span<const int64_t>>("description")
                                  .Attr<int64_t>("threads")
                                  .Attr<bool>("own_core"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(convoy_matrix_product, convoy::Multiply,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Ctx<xla::ffi::DeviceOrdinal>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attr<xla::ffi::Span<const int64_t>>("description")
                                  .Attr<int64_t>("threads")
                                  .Attr<bool>("own_core"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(convoy_pack_weights, convoy::PackWeights,
                              xla::ffi::Ffi::Bind()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attr<xla::ffi::Span<const int64_t>>("description")
                                  .Attr<int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(convoy_inference_convolution, convoy::ConvolveFused,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Ctx<xla::ffi::DeviceOrdinal>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attr<xla::ffi::Span<const int64_t>>("description")
                                  .Attr<int64_t>("threads")
                                  .Attr<bool>("own_core"));

extern "C" {

// Chooses the instructions that oneDNN may use. Must be called once, before anything else.
void convoy_initialise() {
  convoy::HoldOneDnnToWhatRuns();
  // Primitives are cached by this library, with a bound on their number; oneDNN need not do so too.
  dnnl::set_primitive_cache_capacity(0);
}

int convoy_onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return version->major * 10000 + version->minor * 100 + version->patch;
}

int convoy_instruction_set() { return static_cast<int>(dnnl::get_effective_cpu_isa()); }

// Whether Convoy's own convolutions are faster than oneDNN's on this CPU.
int convoy_computes_avx2_at_once() { return convoy::ComputesAvx2AtOnce(); }

// Returns the name of the implementation of a convolution, or null if there is none that is faster
// than XLA's own. The implementation is cached, so that the first call finds it. The name is valid
// for the lifetime of the process.
const char* convoy_convolution_implementation(const int64_t* description, int64_t size,
                                              int64_t threads) {
  try {
    return convoy::Find(description, size, threads)->implementation();
  } catch (const std::exception&) {
    return nullptr;
  }
}

// The same for a matrix product.
const char* convoy_matrix_product_implementation(const int64_t* description, int64_t size,
                                                 int64_t threads) {
  try {
    return convoy::FindProduct(description, size, threads)->implementation();
  } catch (const std::exception&) {
    return nullptr;
  }
}

// Returns the bytes of a convolution's weights in its implementation's layout; -1 if there is none.
int64_t convoy_packed_bytes(const int64_t* description, int64_t size, int64_t threads) {
  try {
    return static_cast<int64_t>(convoy::Find(description, size, threads)->packed_bytes());
  } catch (const std::exception&) {
    return -1;
  }
}

int64_t convoy_cached() { return static_cast<int64_t>(convoy::Executions().size()); }

}  // extern "C"
