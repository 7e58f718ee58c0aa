// The forward pass: blocks of query rows against all the keys they see.
#include <vector>

#include "buffer.h"
#include "call.h"
#include "decode.h"
#include "panel.h"
#include "threads.h"
#include "totals.h"

namespace heedful {

namespace {

constexpr PanelLimits one_panel = {1, 2 * tile_rows};

// One key head, packed.
struct PackedHead {
  float *key, *value;
  bool finite;  // whether all values are
};

struct Workspace {
  Buffer<float> panel, query, sums, row, key, value;
  float inverse[most_rows];
  TopK topk;

  Workspace(const heedful_call &call, bool packs)
      : panel(panel_size(call, one_panel)),
        query(most_rows * call.width),
        sums(most_rows * round_up(std::max(call.value_width, call.carried_width), lanes)),
        row(std::max(call.keys, lanes * round_up(std::max(call.width, call.value_width), lanes))),
        key(packs ? packed_size(call.width, call.keys) : 0),
        value(packs ? packed_size(call.keys, call.value_width) : 0),
        topk(call.topk) {}
};

class Forward {
 public:
  explicit Forward(const heedful_call &call);
  void run();

 private:
  Matrix keys_of(int64_t batch, int64_t group) const { return {call.key, batch, group, call.keys, call.width}; }
  Matrix values_of(int64_t batch, int64_t group) const {
    return {call.value, batch, group, call.keys, call.value_width};
  }
  void pack_all();
  void strip(int64_t batch, int64_t head, int64_t number, const PackedHead &packed, Workspace &work);
  void weigh(const Block &block, Workspace &work) const;
  void add_spoiled_values(const Block &block, Workspace &work) const;
  void write_output(const Block &block, bool finite_values, Workspace &work) const;
  void sum_again(const Block &block, int64_t row, Workspace &work) const;
  void pack_carried();
  void carry(const Block &block, const Groups &groups, Workspace &work) const;
  void write_totals() const;

  const heedful_call &call;
  const bool pairs;
  const int64_t per_group, key_heads, query_heads, key_size, head_size;  // sizes of what is packed of a key head
  int64_t threads, strips, rows_per_strip;
  bool pack_ahead;
  std::vector<Workspace> workspaces;
  Buffer<float> packed_heads, packed_carried;
  Totals totals;
  std::vector<char> finite;
};

// A head's rows are cut into strips. A strip is one thread's task, with its own sums per key, which are added up in
// order at the end: so no result depends on which thread was faster.
Forward::Forward(const heedful_call &call)
    : call(call),
      pairs(as_pairs(call.query, call.key)),
      per_group(call.heads / call.kv_heads),
      key_heads(call.batch * call.kv_heads),
      query_heads(call.batch * call.heads),
      key_size(packed_size(call.width, call.keys)),
      head_size(key_size + packed_size(call.keys, call.value_width)),
      threads(threads_for(call)),
      totals(call) {
  pack_ahead = threads > 1 && key_heads < 8 * threads;
  strips = pack_ahead ? (8 * threads + query_heads - 1) / query_heads : 1;
  rows_per_strip = std::max<int64_t>(round_up((call.queries + strips - 1) / strips, tile_rows), 2 * tile_rows);
  strips = std::max<int64_t>(1, (call.queries + rows_per_strip - 1) / rows_per_strip);
  for (int64_t i = 0; i < threads; i++) workspaces.emplace_back(call, !pack_ahead);
  // One piece, which the allocator keeps for the next call: two of a size, it gives back and fetches again, page by page.
  if (pack_ahead) packed_heads = Buffer<float>(key_heads * head_size);
  totals.reserve(query_heads * strips);
  packed_carried = Buffer<float>(call.batch * packed_size(call.keys, call.carried_width));
  finite.assign(size_t(key_heads), 1);
}

void Forward::run() {
  pack_carried();
  if (pack_ahead) {
    pack_all();
    parallel_for(threads, query_heads * strips, [&](int64_t task, int64_t thread) {
      // Later strips first: under a causal mask they are the longer ones.
      const int64_t head = task / strips, number = strips - 1 - task % strips, group = head / per_group;
      float *keys = packed_heads.get() + group * head_size;
      const PackedHead packed = {keys, keys + key_size, finite[size_t(group)] != 0};
      strip(head / call.heads, head % call.heads, number, packed, workspaces[size_t(thread)]);
    });
  } else {
    parallel_for(threads, key_heads, [&](int64_t task, int64_t thread) {
      Workspace &work = workspaces[size_t(thread)];
      const int64_t batch = task / call.kv_heads, group = task % call.kv_heads;
      pack_columns(keys_of(batch, group), 0, call.keys, work.key.get(), work.row.get(), Spoiled::stay,
                   pairs);
      bool all_finite = true;
      if (given(call.output))
        all_finite = pack_rows(values_of(batch, group), 0, call.keys, {work.value.get(), call.keys, 0}, work.row.get(),
                               Spoiled::become_zero);
      const PackedHead packed = {work.key.get(), work.value.get(), all_finite};
      for (int64_t head = group * per_group; head < (group + 1) * per_group; head++)
        strip(batch, head, 0, packed, work);
    });
  }
  write_totals();
}

void Forward::pack_all() {
  const KeyParts parts(call.keys);
  std::vector<char> good(size_t(key_heads * parts.count), 1);
  parallel_for(threads, key_heads * parts.count, [&](int64_t task, int64_t thread) {
    float *scratch = workspaces[size_t(thread)].row.get();
    const Range part = parts.part(task % parts.count);
    const int64_t head = task / parts.count, batch = head / call.kv_heads, group = head % call.kv_heads;
    float *keys = packed_heads.get() + head * head_size;
    pack_columns(keys_of(batch, group), part.first, part.last, keys, scratch, Spoiled::stay, pairs);
    if (given(call.output))
      good[size_t(task)] = pack_rows(values_of(batch, group), part.first, part.last, {keys + key_size, call.keys, 0},
                                     scratch, Spoiled::become_zero);
  });
  for (int64_t task = 0; task < key_heads * parts.count; task++)
    finite[size_t(task / parts.count)] &= good[size_t(task)];
}

void Forward::pack_carried() {
  if (!call.carried_sum) return;
  heedful_array array = {const_cast<float *>(call.carried), HEEDFUL_FLOAT32, {call.carried_stride, 0, call.carried_width, 1}};
  parallel_for(threads, call.batch, [&](int64_t batch, int64_t thread) {
    const Matrix rows = {array, batch, 0, call.keys, call.carried_width};
    float *packed = packed_carried.get() + batch * packed_size(call.keys, call.carried_width);
    pack_rows(rows, 0, call.keys, {packed, call.keys, 0}, workspaces[size_t(thread)].row.get(), Spoiled::stay);
  });
}

void Forward::strip(int64_t batch, int64_t head, int64_t number, const PackedHead &packed, Workspace &work) {
  const int64_t part = (batch * call.heads + head) * strips + number;
  totals.clear(part);
  const int64_t end = std::min(call.queries, (number + 1) * rows_per_strip);
  for (int64_t begin = number * rows_per_strip; begin < end;) {
    const Block block = next_block(call, batch, head, begin, end, one_panel);
    const Groups groups = groups_of(call, block);
    multiply_columns(call, block, groups, rows_of(call.query, block, call.width, work.query.get(), pairs), call.width,
                     packed.key, work.panel.get(), pairs);
    weigh(block, work);
    if (totals.wanted())
      totals.add(part, {work.panel.get(), block.rows(), block.stride(), work.inverse, batch, head, begin, block.keys});
    if (call.carried_sum) carry(block, groups, work);
    if (given(call.output)) {
      multiply_rows(call, block, groups, work.panel.get(), packed.value, call.value_width, work.sums.get());
      if (!packed.finite) add_spoiled_values(block, work);
      write_output(block, packed.finite, work);
    }
    begin = block.end;
  }
}

// Scores become weights, row by row; a panel holds 0 where a row sees nothing.
void Forward::weigh(const Block &block, Workspace &work) const {
  const int64_t width = block.keys.last - block.keys.first;
  for (int64_t number = 0; number < block.rows(); number++) {
    float *panel = work.panel.get() + number * block.stride();
    const Range seen = visible_range(call, block.batch, block.begin + number, block.keys);
    const RowPlace row = {block.batch, block.head, block.begin + number, seen.first, seen.last - seen.first};
    float *x = panel + (seen.first - block.keys.first);
    work.inverse[number] = finish_row(call, row, x, work.topk, work.row.get()).inverse;
    if (row.size == width) continue;
    std::fill(panel, x, 0.0f);
    std::fill(x + row.size, panel + width, 0.0f);
  }
}

// Values that are not finite were packed as 0: here they reach the rows that see them. Masked pairs have exactly 0 in
// the panel, and no others.
void Forward::add_spoiled_values(const Block &block, Workspace &work) const {
  const int64_t stride = round_up(call.value_width, lanes);
  float *value = work.row.get();
  for (int64_t key = block.keys.first; key < block.keys.last; key++) {
    read_row(call.value, block.batch, block.head / per_group, key, 0, call.value_width, value);
    for (int64_t column = 0; column < call.value_width; column++) {
      if (value[column] - value[column] == 0) continue;
      for (int64_t row = 0; row < block.rows(); row++) {
        const float weight = work.panel[row * block.stride() + key - block.keys.first];
        if (weight != 0) work.sums[row * stride + column] += weight * value[column];
      }
    }
  }
}

void Forward::write_output(const Block &block, bool finite_values, Workspace &work) const {
  const int64_t stride = round_up(call.value_width, lanes);
  for (int64_t row = 0; row < block.rows(); row++) {
    float *sums = work.sums.get() + row * stride;
    Ints finite = ~Ints{};
    for (int64_t column = 0; column < call.value_width; column += lanes) {
      const Floats output = load(sums + column) * work.inverse[row];
      finite &= output - output == Floats{};
      store(sums + column, output);
    }
    if (finite_values && any(~finite)) sum_again(block, row, work);
    write_row(call.output, block.batch, block.head, block.begin + row, call.value_width, sums);
  }
}

// The sums of a row once more, with weights that are divided first: very large values do not overflow then.
void Forward::sum_again(const Block &block, int64_t row, Workspace &work) const {
  float *sums = work.sums.get() + row * round_up(call.value_width, lanes), *value = work.row.get();
  const float *weights = work.panel.get() + row * block.stride();
  const int64_t width = block.keys.last - block.keys.first;
  if (std::any_of(weights, weights + width, [](float weight) { return weight != weight; })) return;
  std::fill(sums, sums + call.value_width, 0.0f);
  for (int64_t i = 0; i < width; i++) {
    if (weights[i] == 0) continue;
    read_row(call.value, block.batch, block.head / per_group, block.keys.first + i, 0, call.value_width, value);
    const float weight = weights[i] * work.inverse[row];
    for (int64_t column = 0; column < call.value_width; column++) sums[column] += weight * value[column];
  }
}

void Forward::carry(const Block &block, const Groups &groups, Workspace &work) const {
  const int64_t width = call.carried_width, stride = round_up(width, lanes);
  multiply_rows(call, block, groups, work.panel.get(), packed_carried.get() + block.batch * packed_size(call.keys, width),
                width, work.sums.get());
  float *to = call.carried_sum + ((block.batch * call.heads + block.head) * call.queries + block.begin) * width;
  for (int64_t row = 0; row < block.rows(); row++, to += width)
    for (int64_t column = 0; column < width; column++)
      to[column] = work.sums[row * stride + column] * work.inverse[row];
}

void Forward::write_totals() const {
  if (!totals.wanted()) return;
  const bool small = query_heads * strips * call.keys < (1 << 20);
  parallel_for(small ? 1 : threads, query_heads,
               [&](int64_t head, int64_t) { totals.write(head, head * strips, strips); });
}

}  // namespace

}  // namespace heedful

extern "C" int heedful_forward(const heedful_call *call) {
  if (call->struct_size != int64_t(sizeof(heedful_call))) return HEEDFUL_WRONG_SIZE;
  if (call->batch == 0 || call->heads == 0 || call->keys == 0) return HEEDFUL_OK;
  try {
    if (heedful::suits_decode(*call))
      heedful::decode(*call);
    else
      heedful::Forward(*call).run();
  } catch (const std::bad_alloc &) {
    return HEEDFUL_OUT_OF_MEMORY;
  }
  return HEEDFUL_OK;
}
