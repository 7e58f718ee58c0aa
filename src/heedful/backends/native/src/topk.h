// The k largest scores of a row, found before the scores become weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "softmax.h"

namespace heedful {

// Place of each of n <= num_maxima numbers when sorted, largest first, equal ones in the order they have.
// Numbers are compared with each other, all at once, without a branch.
inline void rank(const float *x, int n, int32_t *place) {
  const int vectors = (n + lanes - 1) / lanes;
  for (int v = 0; v < vectors; v++) {
    const Ints lane = lane_numbers() + v * lanes;
    const Floats mine = load_some(x + v * lanes, n - v * lanes, -infinity);
    Ints ahead = {};
    for (int i = 0; i < n; i++) {
      const Floats other = all(x[i]);
      ahead -= (other > mine) | ((other == mine) & (lane > i));
    }
    store_ints(place + v * lanes, ahead);
  }
}

// The k-th largest of n numbers, a multiple of lanes: the least of those that fewer than k others exceed.
inline float kth_largest(const float *x, int n, int32_t k) {
  Floats least = all(infinity);
  for (int v = 0; v < n; v += lanes) {
    const Floats mine = load(x + v);
    Ints ahead = {};
    for (int i = 0; i < n; i++) ahead -= all(x[i]) > mine;
    const Floats candidate = ahead < k ? mine : all(infinity);
    least = -larger(-least, -candidate);
  }
  return -largest(-least);
}

class TopK {
 public:
  struct Candidate {
    float score;
    int64_t key;
  };

  explicit TopK(int64_t k)
      : k_(k), scores_(size_t(k > 0 ? capacity() : 0)), places_(scores_.size()), best_(size_t(k > 0 ? capacity() : 0)) {}

  // Among equal scores the lowest key comes first. `maxima` is what row_maximum found.
  void search(const float *x, int64_t n, int64_t first_key, const float *maxima) {
    if (k_ == 0) return;
    found_ = 0;
    least_ = least_of(maxima);
    for (int64_t i = 0; i < n; i += 4 * lanes) {
      uint64_t hits = 0;
      for (int v = 0; v < 4 && i + v * lanes < n; v++)
        hits |= lane_bits(load_some(x + i + v * lanes, n - i - v * lanes, -infinity) >= least_) << (v * lanes);
      for (; hits; hits &= hits - 1) {
        const int64_t at = i + __builtin_ctzll(hits);
        if (found_ == capacity()) keep_best_so_far();
        if (x[at] < least_) continue;
        scores_[size_t(found_)] = x[at];
        places_[size_t(found_++)] = at;
      }
    }
    sort();
    for (int64_t i = 0; i < size_; i++) best_[size_t(i)].key += first_key;
  }

  const Candidate *best() const { return best_.data(); }
  int64_t size() const { return size_; }

  void clear() { size_ = 0; }

  void append(float score, int64_t key) {
    if (size_ < k_) best_[size_t(size_++)] = {score, key};
  }

 private:
  int64_t capacity() const { return 2 * k_ + 64; }

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

  void keep_best_so_far() {
    sort();
    found_ = size_;
    for (int64_t i = 0; i < found_; i++) {
      scores_[size_t(i)] = best_[size_t(i)].score;
      places_[size_t(i)] = best_[size_t(i)].key;
    }
    // Later keys must be better than the k-th, since ties go to the lowest key.
    least_ = std::nextafter(best_[size_t(size_ - 1)].score, infinity);
  }

  // The k best of what was found, in order.
  void sort() {
    size_ = std::min(found_, k_);
    if (found_ <= num_maxima) {
      int32_t order[num_maxima];
      rank(scores_.data(), int(found_), order);
      for (int64_t i = 0; i < found_; i++) best_[size_t(order[i])] = {scores_[size_t(i)], places_[size_t(i)]};
      return;
    }
    for (int64_t i = 0; i < found_; i++) best_[size_t(i)] = {scores_[size_t(i)], places_[size_t(i)]};
    std::partial_sort(best_.begin(), best_.begin() + size_, best_.begin() + found_,
                      [](const Candidate &a, const Candidate &b) {
                        return a.score > b.score || (a.score == b.score && a.key < b.key);
                      });
  }

  int64_t k_, found_ = 0, size_ = 0;
  float least_ = 0;
  std::vector<float> scores_;
  std::vector<int64_t> places_;
  std::vector<Candidate> best_;
};

}  // namespace heedful
