// Hot loops in several versions, the best chosen when the program starts.
//
// The loops are plain C++ that the compiler vectorises; this only asks for it again with wider instructions.
// Not under sanitizers, which are not ready when the loader makes that choice. CAIRN_INTRINSICS: a file may
// have a second version of such a loop, written with intrinsics; sanitizers test the plain one.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#include <immintrin.h>
#define CAIRN_INTRINSICS
#define CAIRN_SIMD_CLONES \
  [[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), gnu::optimize("O3")]]
#else
#define CAIRN_SIMD_CLONES
#endif
