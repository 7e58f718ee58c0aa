// What the panels of a head add up to: answers per key and per head. Sums are in double precision, since many panels
// add up.
#pragma once

#include <vector>

#include "buffer.h"
#include "statistics.h"

namespace heedful {

// Rows of weights of one head, side by side, not yet divided by their sums.
struct Panel {
  const float *data;
  int64_t rows, stride;
  const float *inverse;
  int64_t batch, head, begin;  // the first row's query
  Range keys;                  // of the first column, and one past the last
};

// Room for the totals of some parts, each of one head: a part is one thread's, and its head's parts are merged in order.
class Totals {
 public:
  explicit Totals(const heedful_call &call) : call(call) {}
  void reserve(int64_t parts);
  bool wanted() const { return total_size() > 0 || most_size() > 0; }
  void clear(int64_t part);
  void add(int64_t part, const Panel &panel);
  // Writes the answers of a head, whose parts lie together.
  void write(int64_t query_head, int64_t first, int64_t parts) const;

 private:
  int64_t keys_if(const void *asked) const { return asked ? call.keys : 0; }
  int64_t offsets() const { return call.profile ? 2 * call.profile_size - 1 : 0; }
  int64_t cells(const void *asked) const { return asked ? call.map_rows * call.map_columns : 0; }
  int64_t total_size() const { return keys_if(call.received_sum) + offsets() + cells(call.map_sum); }
  int64_t most_size() const {
    return keys_if(call.received_max) + keys_if(call.received_count) + cells(call.map_max);
  }
  double *received_sum(int64_t part) const { return total.get() + part * total_size(); }
  double *profile(int64_t part) const { return received_sum(part) + keys_if(call.received_sum); }
  double *map_sum(int64_t part) const { return profile(part) + offsets(); }
  float *received_max(int64_t part) const { return most.get() + part * most_size(); }
  float *received_count(int64_t part) const { return received_max(part) + keys_if(call.received_max); }
  float *map_max(int64_t part) const { return received_count(part) + keys_if(call.received_count); }
  template <bool sum_only>
  void add_received(int64_t part, const Panel &panel);
  void add_profile(int64_t part, const Panel &panel);
  void merge(int64_t first, int64_t parts) const;
  void add_map(int64_t part, const Panel &panel, int64_t begin, int64_t end);

  const heedful_call &call;
  Buffer<double> total;
  Buffer<float> most;
};

}  // namespace heedful
