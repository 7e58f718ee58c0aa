#pragma once

#include "plan.h"

namespace heedful {

// Whether a call has few enough queries per key head.
bool suits_decode(const heedful_call &call);

void decode(const heedful_call &call);

// Rows as floats, each padded with 0 to whole vectors.
void read_padded(const heedful_array &from, int64_t batch, int64_t head, int64_t begin, int64_t end, int64_t width,
                 float *to);

// The dot products of padded queries with the keys of a range, summed in the order that decode() sums them in.
void score_few(const heedful_call &call, int64_t batch, int64_t group, const float *queries, int64_t rows, Range keys,
               float *scores, int64_t stride);

}  // namespace heedful
