// Marks functions whose loops the compiler vectorises for several instruction sets; the one that
// runs here is chosen when the library is loaded.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#define CONVOY_VECTORISED \
  __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define CONVOY_VECTORISED
#endif
