// The instructions that kernels may use on this machine.
#pragma once

namespace convoy {

// A CPU may report AMX while the system refuses its registers to the process; the first tile
// instruction would then kill the process. If the permission is not granted, oneDNN is restricted
// to the instruction sets below AMX.
void HoldOneDnnToWhatRuns();

// Whether this CPU computes at most 256 bits at once, so that kernels for AVX2 are as fast as any:
// it has no longer vectors, or splits those of AVX-512 into two halves, as Zen 4 does.
bool ComputesAvx2AtOnce();

// Whether oneDNN may use AVX-512 here.
bool HasAvx512();

// Whether it may use the instructions for products of bfloat16, and of float16.
bool HasBfloat16();
bool HasFloat16();

}  // namespace convoy
