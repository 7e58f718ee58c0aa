#include "plan.h"

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace heedful {

int64_t level2_cache() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  static const int64_t size = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (size > 0) return std::clamp<int64_t>(size, 256 << 10, 4 << 20);
#endif
  return 512 << 10;
}

}  // namespace heedful
