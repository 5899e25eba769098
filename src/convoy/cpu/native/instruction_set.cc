// Detection of the instructions that oneDNN and Convoy's own kernels may use.
#include "instruction_set.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

#include "dnnl.hpp"

namespace convoy {
namespace {

constexpr int kGetStatePermission = 0x1022;      // ARCH_GET_XCOMP_PERM
constexpr int kRequestStatePermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
constexpr int kTileData = 18;

bool SystemGrantsTiles() {
  unsigned long granted = 0;
  if (syscall(SYS_arch_prctl, kRequestStatePermission, kTileData) != 0) return false;
  if (syscall(SYS_arch_prctl, kGetStatePermission, &granted) != 0) return false;
  return (granted >> kTileData) & 1;
}

// Zen 4 is the one of AMD's family 19h that has AVX-512.
bool TakesAvx512InHalves() {
  unsigned signature, unused;
  if (!__builtin_cpu_is("amd") || !__get_cpuid(1, &signature, &unused, &unused, &unused)) {
    return false;
  }
  const unsigned family = (signature >> 8 & 0xf) + (signature >> 20 & 0xff);
  return family == 0x19;
}

}  // namespace

void HoldOneDnnToWhatRuns() {
  // Setting a maximum overrides these variables, so a variable that the user set takes precedence.
  if (std::getenv("ONEDNN_MAX_CPU_ISA") || std::getenv("DNNL_MAX_CPU_ISA")) return;
  if (!__builtin_cpu_supports("amx-tile") || SystemGrantsTiles()) return;
  dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_fp16);
}

bool HasAvx512() { return dnnl::get_effective_cpu_isa() >= dnnl::cpu_isa::avx512_core; }

// Each instruction set of oneDNN has the bits of all that it includes.
bool Includes(dnnl::cpu_isa needed) {
  const auto bits = static_cast<unsigned>(needed);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}

bool HasBfloat16() { return Includes(dnnl::cpu_isa::avx512_core_bf16); }
bool HasFloat16() { return Includes(dnnl::cpu_isa::avx512_core_fp16); }

bool ComputesAvx2AtOnce() {
  for (const bool has : {__builtin_cpu_supports("avx2") != 0, __builtin_cpu_supports("fma") != 0,
                         __builtin_cpu_supports("f16c") != 0}) {
    if (!has) return false;
  }
  return !HasAvx512() || TakesAvx512InHalves();
}

}  // namespace convoy
