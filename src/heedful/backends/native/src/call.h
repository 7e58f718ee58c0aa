// The plain C interface: one struct describes a call, and three functions take it.
// Sizes and strides count elements. A null pointer means "absent" or "not asked for".
#pragma once

#include <stdint.h>

#define HEEDFUL_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum heedful_dtype { HEEDFUL_FLOAT32, HEEDFUL_BFLOAT16, HEEDFUL_FLOAT16, HEEDFUL_BOOL };
enum heedful_status { HEEDFUL_OK, HEEDFUL_OUT_OF_MEMORY, HEEDFUL_WRONG_SIZE };

// A four-dimensional array: (batch, head, row, column). A dimension that repeats has stride 0.
typedef struct {
  void *data;
  int64_t dtype;
  int64_t stride[4];
} heedful_array;

typedef struct {
  int64_t struct_size;  // sizeof(heedful_call), so that two builds cannot be mixed up unnoticed
  int64_t threads;
  int64_t batch, heads, kv_heads, queries, keys, width, value_width;

  heedful_array query, key, value;
  heedful_array output;  // (batch, heads, queries, value_width)

  // From a dot product to a logit, in this order; then the sink joins the sum of the row.
  float scale;
  float softcap;               // 0: none
  heedful_array bias;          // (batch, heads, queries, keys); minus infinity is a mask
  const float *slopes;         // (heads): adds -slope * |position of the query - key|
  const int64_t *positions;    // (batch, queries): where each query stands among the keys
  int64_t position_stride;     // from one batch item to the next, 0 when all are alike
  const float *sinks;          // (heads)

  // Which keys a query sees: those from first to last - 1, and of these where `mask` is true.
  const int32_t *first, *last;  // (batch, queries)
  int64_t range_stride;         // from one batch item to the next, 0 when all are alike
  heedful_array mask;

  // Answers per query, each contiguous (batch, heads, queries, ...).
  float *logsumexp, *max_logit, *entropy, *mass, *mean_distance;
  int64_t topk;  // how many, largest first
  float *topk_weight;
  int64_t *topk_key;
  float *weights;  // (..., keys)
  float *row_state;  // (..., 2): what heedful_backward needs to make the same weights again

  // Answers per key, each contiguous (batch, heads, keys).
  float *received_sum, *received_max;
  float *received_count;  // how many queries see the key

  // Answers per head, each contiguous (batch, heads, ...).
  int64_t profile_size;
  float *profile;  // (..., profile_size): the sum of all weights at each distance
  int64_t map_rows, map_columns;
  const int32_t *map_row, *map_column;  // (queries) and (keys), the block that each lies in; columns in order
  const float *map_scale;               // (batch, heads, keys), a factor for every weight, or absent
  float *map_sum, *map_max;             // (..., map_rows, map_columns)

  // weights @ carried, for carried of (batch, keys, carried_width), contiguous but for the batch.
  const float *carried;
  int64_t carried_width, carried_stride;
  float *carried_sum;  // (batch, heads, queries, carried_width)
} heedful_call;

// What is known and wanted of the gradient. The gradients of the answers are laid out like the answers.
typedef struct {
  int64_t struct_size;
  const float *row_state;  // as heedful_forward left it
  heedful_array output;    // of the output, or absent
  const float *logsumexp, *entropy, *received_sum;
  int64_t topk;
  const float *topk_weight;
  const int64_t *topk_key;  // not a gradient: where the weights are
  heedful_array query, key, value;  // written, in any dtype, if present
  float *logits;                    // written if present: (batch, heads, queries, keys), of what a bias is added to
  float *row;                       // written if present: (batch, heads, queries), what all logits of a row have in
                                    // common, so that a sink's gradient is its weight times this
} heedful_gradient;

HEEDFUL_EXPORT int heedful_forward(const heedful_call *call);

HEEDFUL_EXPORT int heedful_backward(const heedful_call *call, const heedful_gradient *gradient);

HEEDFUL_EXPORT const char *heedful_level();
HEEDFUL_EXPORT const char *heedful_compiler();
HEEDFUL_EXPORT int heedful_uses_openmp();
// Sizes of the two structs, to tell a library of another version.
HEEDFUL_EXPORT void heedful_sizes(int64_t sizes[2]);
// Whether this machine runs what was compiled for that level.
HEEDFUL_EXPORT int heedful_can_run(const char *level);

#ifdef __cplusplus
}
#endif
