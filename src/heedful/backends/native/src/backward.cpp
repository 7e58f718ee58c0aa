// The backward pass: each panel of weights is made again, bit for bit, used for every gradient, and dropped.
//
//     G = dO V^T + what the answers add           how the loss changes with each weight
//     dS = P * (G - rowsum(P * G) + dlogsumexp)   how it changes with each logit
//     dQ = dS K,  dK = dS^T Q,  dV = P^T dO
#include <cmath>
#include <vector>

#include "buffer.h"
#include "call.h"
#include "decode.h"
#include "logits.h"
#include "panel.h"
#include "threads.h"

namespace heedful {

namespace {

constexpr PanelLimits two_panels = {2, 4 * tile_rows};

// One key head, packed: columns are keys (for the scores and dO V^T), and depth is keys (for dQ).
struct PackedHead {
  float *key_columns, *value_columns, *key_rows;
};

struct Workspace {
  Buffer<float> weights, grads;  // two panels
  Buffer<float> query, output;   // rows of the block as float32, where they are not
  Buffer<float> packed_query, packed_output;
  Buffer<float> query_grad, row, slope, packed;
  Groups groups;

  Workspace(const heedful_call &call, int64_t packed_size)
      : weights(panel_size(call, two_panels)),
        grads(panel_size(call, two_panels)),
        query(most_rows * round_up(call.width, lanes)),
        output(most_rows * call.value_width),
        packed_query(packed_size_of_block(call.width)),
        packed_output(packed_size_of_block(call.value_width)),
        query_grad(packed_size_of_block(call.width)),
        row(std::max(call.keys, lanes * round_up(std::max(call.width, call.value_width), lanes))),
        slope(call.softcap > 0 ? call.keys : 0),
        packed(packed_size) {}

  static int64_t packed_size_of_block(int64_t width) { return heedful::packed_size(most_rows, width); }
};

class Backward {
 public:
  Backward(const heedful_call &call, const heedful_gradient &gradient);
  void run();

 private:
  PackedHead parts(float *at) const;
  void pack(int64_t key_head, int64_t begin, int64_t end, const PackedHead &packed, float *scratch) const;
  void strip(int64_t key_head, int64_t number, const PackedHead &packed, Workspace &work);
  void block(const Block &block, const PackedHead &packed, Workspace &work, float *key_grad, float *value_grad) const;
  void score(const Block &block, const PackedHead &packed, Workspace &work) const;
  void row_gradient(const Block &block, int64_t number, Workspace &work) const;
  void sum_query_grad(const Block &block, const PackedHead &packed, Workspace &work) const;
  void add_key_grad(const Block &block, const float *panel, const float *packed_rows, int64_t width, float *sums,
                    const Workspace &work) const;
  void write_key_grads() const;

  const heedful_call &call;
  const heedful_gradient &gradient;
  const bool few, through_scores, pairs, grad_pairs;
  const int64_t threads, per_group, key_heads, key_stride, value_stride;
  int64_t strips, rows_per_strip, head_size;
  std::vector<Workspace> workspaces;
  Buffer<float> packed_heads, key_grads, value_grads;
};

// Each key head is a task, with all the query heads that share it; with fewer key heads than keep the threads busy, its
// rows are cut into strips. A task has its own sums, which are added up in order at the end.
Backward::Backward(const heedful_call &call, const heedful_gradient &gradient)
    : call(call),
      gradient(gradient),
      few(suits_decode(call)),
      through_scores(given(gradient.query) || given(gradient.key) || gradient.row || gradient.logits),
      pairs(as_pairs(call.query, call.key)),
      grad_pairs(as_pairs(gradient.output, call.value)),
      threads(threads_for(call)),
      per_group(call.heads / call.kv_heads),
      key_heads(call.batch * call.kv_heads),
      key_stride(round_up(call.width, lanes)),
      value_stride(round_up(call.value_width, lanes)) {
  strips = threads == 1 ? 1 : (2 * threads + key_heads - 1) / key_heads;
  rows_per_strip = std::max<int64_t>(round_up((call.queries + strips - 1) / strips, tile_rows), tile_rows);
  strips = std::max<int64_t>(1, (call.queries + rows_per_strip - 1) / rows_per_strip);
  head_size = packed_size(call.width, call.keys) + packed_size(call.value_width, call.keys) +
              packed_size(call.keys, call.width);
  for (int64_t i = 0; i < threads; i++) workspaces.emplace_back(call, strips == 1 ? head_size : 0);
  if (strips > 1) packed_heads = Buffer<float>(key_heads * head_size);
  key_grads = Buffer<float>(given(gradient.key) ? key_heads * strips * call.keys * key_stride : 0);
  value_grads = Buffer<float>(given(gradient.value) ? key_heads * strips * call.keys * value_stride : 0);
}

void Backward::run() {
  if (strips > 1) {
    const KeyParts key_parts(call.keys);
    parallel_for(threads, key_heads * key_parts.count, [&](int64_t task, int64_t thread) {
      const int64_t head = task / key_parts.count;
      const Range part = key_parts.part(task % key_parts.count);
      pack(head, part.first, part.last, parts(packed_heads.get() + head * head_size),
           workspaces[size_t(thread)].row.get());
    });
  }
  parallel_for(threads, key_heads * strips, [&](int64_t task, int64_t thread) {
    Workspace &work = workspaces[size_t(thread)];
    // Later strips first: under a causal mask they are the longer ones.
    const int64_t head = task / strips, number = strips - 1 - task % strips;
    const PackedHead packed = parts(strips > 1 ? packed_heads.get() + head * head_size : work.packed.get());
    if (strips == 1) pack(head, 0, call.keys, packed, work.row.get());
    strip(head, number, packed, work);
  });
  write_key_grads();
}

PackedHead Backward::parts(float *at) const {
  float *value_columns = at + packed_size(call.width, call.keys);
  return {at, value_columns, value_columns + packed_size(call.value_width, call.keys)};
}

void Backward::pack(int64_t key_head, int64_t begin, int64_t end, const PackedHead &packed, float *scratch) const {
  const int64_t batch = key_head / call.kv_heads, group = key_head % call.kv_heads;
  const Matrix keys = {call.key, batch, group, call.keys, call.width};
  const Matrix values = {call.value, batch, group, call.keys, call.value_width};
  if (!few) pack_columns(keys, begin, end, packed.key_columns, scratch, Spoiled::stay, pairs);
  if (through_scores && given(gradient.output))
    pack_columns(values, begin, end, packed.value_columns, scratch, Spoiled::become_zero, grad_pairs);
  if (given(gradient.query)) pack_rows(keys, begin, end, {packed.key_rows, call.keys, 0}, scratch, Spoiled::become_zero);
}

void Backward::strip(int64_t key_head, int64_t number, const PackedHead &packed, Workspace &work) {
  const int64_t task = key_head * strips + number;
  float *key_grad = nullptr, *value_grad = nullptr;
  if (given(gradient.key)) {
    key_grad = key_grads.get() + task * call.keys * key_stride;
    std::fill(key_grad, key_grad + call.keys * key_stride, 0.0f);
  }
  if (given(gradient.value)) {
    value_grad = value_grads.get() + task * call.keys * value_stride;
    std::fill(value_grad, value_grad + call.keys * value_stride, 0.0f);
  }
  const int64_t batch = key_head / call.kv_heads, first_head = key_head % call.kv_heads * per_group;
  const int64_t end = std::min(call.queries, (number + 1) * rows_per_strip);
  for (int64_t head = first_head; head < first_head + per_group; head++)
    for (int64_t begin = number * rows_per_strip; begin < end;) {
      const Block panel = next_block(call, batch, head, begin, end, two_panels);
      block(panel, packed, work, key_grad, value_grad);
      begin = panel.end;
    }
}

void Backward::block(const Block &block, const PackedHead &packed, Workspace &work, float *key_grad,
                     float *value_grad) const {
  const Matrix queries = {call.query, block.batch, block.head, call.queries, call.width};
  const Matrix outputs = {gradient.output, block.batch, block.head, call.queries, call.value_width};
  work.groups = groups_of(call, block);
  score(block, packed, work);
  if (through_scores && given(gradient.output))
    multiply_columns(call, block, work.groups,
                     rows_of(gradient.output, block, call.value_width, work.output.get(), grad_pairs), call.value_width,
                     packed.value_columns, work.grads.get(), grad_pairs);
  for (int64_t number = 0; number < block.rows(); number++) row_gradient(block, number, work);

  if (given(gradient.query)) sum_query_grad(block, packed, work);
  if (key_grad) {
    pack_rows(queries, block.begin, block.end, {work.packed_query.get(), block.rows(), block.begin}, work.row.get(),
              Spoiled::become_zero);
    add_key_grad(block, work.grads.get(), work.packed_query.get(), call.width, key_grad, work);
  }
  if (value_grad && given(gradient.output)) {
    pack_rows(outputs, block.begin, block.end, {work.packed_output.get(), block.rows(), block.begin}, work.row.get(),
              Spoiled::stay);
    add_key_grad(block, work.weights.get(), work.packed_output.get(), call.value_width, value_grad, work);
  }
}

// The scores as the forward pass found them, to the last bit.
void Backward::score(const Block &block, const PackedHead &packed, Workspace &work) const {
  if (!few)
    return multiply_columns(call, block, work.groups, rows_of(call.query, block, call.width, work.query.get(), pairs),
                            call.width, packed.key_columns, work.weights.get(), pairs);
  read_padded(call.query, block.batch, block.head, block.begin, block.end, call.width, work.query.get());
  score_few(call, block.batch, block.head / per_group, work.query.get(), block.rows(), block.keys, work.weights.get(),
            block.stride());
}

// From the scores of a row and dO V^T to its weights and the gradient of its scores, both in place.
void Backward::row_gradient(const Block &block, int64_t number, Workspace &work) const {
  float *weights = work.weights.get() + number * block.stride(), *grads = work.grads.get() + number * block.stride();
  const Range seen = visible_range(call, block.batch, block.begin + number, block.keys);
  const RowPlace row = {block.batch, block.head, block.begin + number, seen.first, seen.last - seen.first};
  const int64_t at = (row.batch * call.heads + row.head) * call.queries + row.query;
  const int64_t before = seen.first - block.keys.first, width = block.keys.last - block.keys.first;
  float *x = weights + before, *g = grads + before;
  if (!through_scores || !given(gradient.output)) std::fill(g, g + row.size, 0.0f);
  for (int64_t i = 0; i < gradient.topk; i++) {
    const int64_t key = gradient.topk_key[at * gradient.topk + i];
    if (seen.first <= key && key < seen.last) g[key - seen.first] += gradient.topk_weight[at * gradient.topk + i];
  }

  const bool plain = only_scaled(call);
  const float factor = plain ? call.scale : 1;
  float *slope = call.softcap > 0 ? work.slope.get() : nullptr;
  if (!plain) shape_row(call, row, x, work.row.get(), slope);

  const float top = gradient.row_state[2 * at], inverse = gradient.row_state[2 * at + 1];
  const float *received = gradient.received_sum
                              ? gradient.received_sum + (row.batch * call.heads + row.head) * call.keys + seen.first
                              : nullptr;
  const float of_entropy = gradient.entropy ? gradient.entropy[at] : 0;
  const float log_inverse = std::log(std::max(inverse, std::numeric_limits<float>::min()));
  Floats mean = {};
  for (int64_t i = 0; i < row.size; i += lanes) {
    const int64_t n = row.size - i;
    const Floats score = load_some(x + i, n, -infinity);
    const Floats t = below(top, score, factor);
    const Ints visible = score != all(-infinity);
    const Floats p = from_bits(bits(exp_scaled(t, factor) * inverse) & visible);
    Floats grad = load_some(g + i, n, 0);
    if (received) grad += load_some(received + i, n, 0);
    if (of_entropy != 0) grad -= of_entropy * (t * factor + (log_inverse + 1));
    grad = from_bits(bits(grad) & visible);
    mean += p * grad;
    store(x + i, p);
    store(g + i, grad);
  }
  const float of_row = (gradient.logsumexp ? gradient.logsumexp[at] : 0) - sum(mean);
  if (gradient.row) gradient.row[at] = of_row;
  float *logits = gradient.logits ? gradient.logits + at * call.keys : nullptr;
  if (logits) {
    std::fill(logits, logits + seen.first, 0.0f);
    std::fill(logits + seen.first + row.size, logits + call.keys, 0.0f);
  }
  for (int64_t i = 0; i < row.size; i += lanes) {
    const Floats p = load(x + i);
    const Floats of_logit = from_bits(bits(p * (load(g + i) + of_row)) & (p != 0.0f));
    if (logits) store_some(logits + seen.first + i, of_logit, row.size - i);
    Floats grad = of_logit * call.scale;
    if (slope) grad *= load_some(slope + i, row.size - i, 0);
    store(g + i, grad);
  }
  for (float *panel : {weights, grads}) {
    std::fill(panel, panel + before, 0.0f);
    std::fill(panel + before + row.size, panel + width, 0.0f);
  }
}

// dQ = dS K, by chunks of keys.
void Backward::sum_query_grad(const Block &block, const PackedHead &packed, Workspace &work) const {
  float *sums = work.query_grad.get();
  multiply_rows(call, block, work.groups, work.grads.get(), packed.key_rows, call.width, sums);
  for (int64_t number = 0; number < block.rows(); number++)
    write_row(gradient.query, block.batch, block.head, block.begin + number, call.width, sums + number * key_stride);
}

// sums (keys, width) += panel.T @ rows, where rows of the block see the keys.
void Backward::add_key_grad(const Block &block, const float *panel, const float *packed_rows, int64_t width,
                            float *sums, const Workspace &work) const {
  const int64_t stride = round_up(width, lanes), groups = (block.rows() + tile_rows - 1) / tile_rows;
  for (int64_t key = block.keys.first; key < block.keys.last; key += tile_rows) {
    const int count = int(std::min<int64_t>(tile_rows, block.keys.last - key));
    const auto sees = [&](int64_t group) {
      const Range seen = work.groups.seen[group];
      return seen.first < key + count && key < seen.last;
    };
    int64_t first = 0, last = groups;
    while (first < last && !sees(first)) first++;
    while (first < last && !sees(last - 1)) last--;
    if (first == last) continue;
    const int64_t row = first * tile_rows, depth = std::min(last * tile_rows, block.rows()) - row;
    const Strided columns = {panel + row * block.stride() + (key - block.keys.first), 1, block.stride()};
    for (int64_t column = 0; column < width; column += tile_columns) {
      const int vectors = vectors_at(column, width);
      tile_for<true>(count, vectors)(columns, packed_rows + block.rows() * column + row * vectors * lanes, depth,
                                     sums + key * stride + column, stride);
    }
  }
}

void Backward::write_key_grads() const {
  const auto write = [&](const heedful_array &to, const Buffer<float> &sums, int64_t width, int64_t stride) {
    if (!given(to)) return;
    parallel_for(threads, key_heads, [&](int64_t head, int64_t) {
      float *first = sums.get() + head * strips * call.keys * stride;
      for (int64_t number = 1; number < strips; number++) {
        const float *other = first + number * call.keys * stride;
        for (int64_t i = 0; i < call.keys * stride; i++) first[i] += other[i];
      }
      for (int64_t key = 0; key < call.keys; key++)
        write_row(to, head / call.kv_heads, head % call.kv_heads, key, width, first + key * stride);
    });
  };
  write(gradient.key, key_grads, call.width, key_stride);
  write(gradient.value, value_grads, call.value_width, value_stride);
}

}  // namespace

}  // namespace heedful

extern "C" int heedful_backward(const heedful_call *call, const heedful_gradient *gradient) {
  if (call->struct_size != int64_t(sizeof(heedful_call)) || gradient->struct_size != int64_t(sizeof(heedful_gradient)))
    return HEEDFUL_WRONG_SIZE;
  if (call->batch == 0 || call->heads == 0 || call->keys == 0) return HEEDFUL_OK;
  try {
    heedful::Backward(*call, *gradient).run();
  } catch (const std::bad_alloc &) {
    return HEEDFUL_OUT_OF_MEMORY;
  }
  return HEEDFUL_OK;
}
