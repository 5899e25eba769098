// Which instructions oneDNN may use on this machine.
#pragma once

namespace convoy {

// A CPU may report AMX while the system refuses its registers to the process, and the first tile
// instruction then ends it. Where the permission is not granted, oneDNN is held below AMX.
void HoldOneDnnToWhatRuns();

// Whether the kernels written for AVX2 are the best there are: with longer vectors, oneDNN's are.
bool LongestVectorsAreAvx2();

}  // namespace convoy
