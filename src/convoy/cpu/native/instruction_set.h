// The instructions that kernels may use on this machine.
#pragma once

namespace convoy {

// A CPU may report AMX while the system refuses its registers to the process, which the first tile
// instruction then kills. If the permission is not granted, oneDNN is restricted to what is below
// AMX.
void HoldOneDnnToWhatRuns();

// Whether 256 bits are all that this CPU computes at once, so that kernels written for AVX2 are as
// fast as any: it has no longer vectors, or splits those of AVX-512 into two halves, as Zen 4 does.
bool ComputesAvx2AtOnce();

// Whether oneDNN may use AVX-512 here.
bool HasAvx512();

// Whether it may use the instructions for products of bfloat16, and of float16.
bool HasBfloat16();
bool HasFloat16();

}  // namespace convoy
