// Which instructions oneDNN may use on this machine.
#pragma once

namespace convoy {

// A CPU may report AMX while the system refuses its registers to the process, and the first tile
// instruction then ends it. Where the permission is not granted, oneDNN is held below AMX.
void HoldOneDnnToWhatRuns();

// Whether this CPU computes no more than AVX2's 256 bits at once, so that kernels written for AVX2
// are as fast as any: it has nothing longer, or takes AVX-512's vectors in two halves, as Zen 4 does.
bool ComputesAvx2AtOnce();

// Whether oneDNN may use AVX-512 here.
bool HasAvx512();

}  // namespace convoy
