// What this library was compiled for, and what the machine can run.
#include <cstring>

#include "call.h"

#if !defined(HEEDFUL_LEVEL)
#define HEEDFUL_LEVEL "generic"
#endif

extern "C" const char *heedful_level() { return HEEDFUL_LEVEL; }

extern "C" const char *heedful_compiler() {
#if defined(__clang__)
  return "Clang " __clang_version__;
#else
  return "GCC " __VERSION__;
#endif
}

extern "C" int heedful_uses_openmp() {
#if defined(_OPENMP)
  return 1;
#else
  return 0;
#endif
}

extern "C" void heedful_sizes(int64_t sizes[2]) {
  sizes[0] = int64_t(sizeof(heedful_call));
  sizes[1] = int64_t(sizeof(heedful_gradient));
}

extern "C" int heedful_can_run(const char *level) {
#if defined(__x86_64__)
  __builtin_cpu_init();  // not every runtime does it when the library is loaded
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  if (std::strcmp(level, "x86-64-v2") == 0) return true;  // this very code is at least that
  if (std::strcmp(level, "x86-64-v3") == 0) return v3;
  if (std::strcmp(level, "x86-64-v4") == 0) return v4;
  if (std::strcmp(level, "x86-64-v4-bf16") == 0) return v4 && __builtin_cpu_supports("avx512bf16");
#endif
  return std::strcmp(level, HEEDFUL_LEVEL) == 0;
}
