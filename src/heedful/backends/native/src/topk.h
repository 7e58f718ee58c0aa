// The k largest scores of a row, found before the scores become weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "softmax.h"

namespace heedful {

// The k-th largest of n numbers, a multiple of lanes: the least of those that fewer than k others exceed.
inline float kth_largest(const float *x, int n, int32_t k) {
  Floats least = all(infinity);
  for (int v = 0; v < n; v += lanes) {
    const Floats mine = load(x + v);
    Ints ahead = {};
#pragma GCC unroll 16
    for (int i = 0; i < n; i++) ahead -= all(x[i]) > mine;
    const Floats candidate = ahead < k ? mine : all(infinity);
    least = -larger(-least, -candidate);
  }
  return -largest(-least);
}

class TopK {
 public:
  explicit TopK(int64_t k) : k_(k), scores_(k > 0 ? size_t(capacity()) : 0), keys_(scores_.size()), best_(keys_.size()) {
    candidates_.reserve(keys_.size());
  }

  // Keys are numbered from that of x[0]. Among equal scores the lowest key comes first. `maxima` is what row_maximum
  // found.
  void search(const float *x, int64_t n, const float *maxima) {
    if (k_ == 0) return;
    int64_t found = 0;
    float least = least_of(maxima);
    for (int64_t i = 0; i < n; i += block) {
      if (found + block > capacity() - lanes) {
        sort(found);
        for (found = 0; found < size_; found++) {
          keys_[size_t(found)] = best_[size_t(found)];
          scores_[size_t(found)] = x[best_[size_t(found)]];
        }
        // Later keys must be better than the k-th, since ties go to the lowest key.
        least = std::nextafter(scores_[size_t(found - 1)], infinity);
      }
      for (uint64_t hits = reach(least, x + i, n - i); hits; hits &= hits - 1, found++) {
        const int64_t at = i + __builtin_ctzll(hits);
        scores_[size_t(found)] = x[at];
        keys_[size_t(found)] = at;
      }
    }
    sort(found);
  }

  // The k best keys, or all if there are fewer.
  const int64_t *best() const { return best_.data(); }
  int64_t size() const { return size_; }

  void clear() { size_ = 0; }

  void append(int64_t key) {
    if (size_ < k_) best_[size_t(size_++)] = key;
  }

 private:
  static constexpr int64_t block = 64;  // keys, a bit each
  struct Candidate {
    float score;
    int64_t key;
  };

  // Which of a block's scores reach a bound, a bit each.
  static uint64_t reach(float bound, const float *x, int64_t n) {
    uint64_t hits = 0;
    if (n >= block) {
#pragma GCC unroll 16
      for (int at = 0; at < block; at += lanes) hits |= lanes_at_least(load(x + at), bound) << at;
      return hits;
    }
    for (int at = 0; at < n; at += lanes) hits |= lanes_at_least(load_some(x + at, n - at, -infinity), bound) << at;
    return hits;
  }

  // Room for the best, for more than as many others, for those of one block, and to pad with a vector.
  int64_t capacity() const { return 2 * k_ + 2 * block + lanes; }

  // A bound that at least k scores reach: each of the maxima is the score of another key.
  float least_of(const float *maxima) const {
    const float lowest = std::numeric_limits<float>::lowest();
    if (k_ > num_maxima) return lowest;
    float most[num_maxima];
    std::copy(maxima, maxima + num_maxima, most);
    int n = num_maxima;
    for (; n / 2 >= 2 * k_ && n > lanes; n /= 2)
      for (int i = 0; i < n / 2; i += lanes) store(most + i, larger(load(most + i), load(most + n / 2 + i)));
    return std::max(lowest, kth_largest(most, n, int32_t(k_)));
  }

  // The k best of what was found, in order.
  void sort(int64_t found) {
    size_ = std::min(found, k_);
    if (size_ == 0 || (found <= num_maxima && (sorted<false>(found) || sorted<true>(found)))) return;
    candidates_.clear();
    for (int64_t i = 0; i < found; i++) candidates_.push_back({scores_[size_t(i)], keys_[size_t(i)]});
    std::partial_sort(candidates_.begin(), candidates_.begin() + size_, candidates_.end(),
                      [](const Candidate &a, const Candidate &b) {
                        return a.score > b.score || (a.score == b.score && a.key < b.key);
                      });
    for (int64_t i = 0; i < size_; i++) best_[size_t(i)] = candidates_[size_t(i)].key;
  }

  // Sorts all that was found, at most num_maxima: a place is how many are ahead, counted without a branch. With `ties`,
  // equal scores have the order they lie in; without, false is returned if there are any.
  template <bool ties>
  bool sorted(int64_t found) {
    static_assert(num_maxima <= 64, "a bit for each place");
    const float *scores = scores_.data();
    store(scores_.data() + found, all(-infinity));
    uint64_t taken = 0;
#pragma GCC unroll 4
    for (int64_t i = 0; i < found; i++) {
      int place = -1;  // it counts itself
      for (int64_t v = 0; v < found; v += lanes) {
        const Floats others = load(scores + v);
        uint64_t ahead = lanes_at_least(others, scores[i]);
        if (ties) ahead &= ~lane_bits((others == scores[i]) & (lane_numbers() > int32_t(i - v)));
        place += __builtin_popcountll(ahead);
      }
      best_[size_t(place)] = keys_[size_t(i)];
      taken |= uint64_t(1) << place;
    }
    return taken == ~uint64_t(0) >> (64 - found);
  }

  int64_t k_, size_ = 0;
  std::vector<float> scores_;
  std::vector<int64_t> keys_, best_;
  std::vector<Candidate> candidates_;
};

}  // namespace heedful
