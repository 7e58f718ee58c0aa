#pragma once

#include "call.h"

namespace heedful {

// Whether a call has few enough queries per key head.
bool suits_decode(const heedful_call &call);

void decode(const heedful_call &call);

}  // namespace heedful
