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

class TopK {
 public:
  struct Candidate {
    float score;
    int64_t key;
  };

  explicit TopK(int64_t k) : k_(k), scores_(size_t(k > 0 ? capacity() : 0)), keys_(scores_.size()) {
    best_.reserve(size_t(k));
  }

  // Among equal scores the lowest key comes first. `maxima` is what row_maximum found.
  void search(const float *x, int64_t n, int64_t first_key, const float *maxima) {
    if (k_ == 0) return;
    found_ = 0;
    least_ = least_of(maxima);
    int64_t i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
      uint64_t hits = 0;
      for (int v = 0; v < 4; v++) hits |= lane_bits(load(x + i + v * lanes) >= least_) << (v * lanes);
      for (; hits; hits &= hits - 1) {
        const int64_t at = i + __builtin_ctzll(hits);
        offer(x[at], first_key + at);
      }
    }
    for (; i < n; i++)
      if (x[i] >= least_) offer(x[i], first_key + i);
    keep_best();
  }

  const std::vector<Candidate> &best() const { return best_; }

  void clear() { best_.clear(); }

  void append(float score, int64_t key) {
    if (int64_t(best_.size()) < k_) best_.push_back({score, key});
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
    int32_t place[num_maxima];
    rank(most, n, place);
    for (int i = 0; i < n; i++)
      if (place[i] == k_ - 1) return std::max(lowest, most[i]);
    return lowest;
  }

  void offer(float score, int64_t key) {
    if (found_ == capacity()) {
      keep_best();
      for (found_ = 0; found_ < int64_t(best_.size()); found_++) {
        scores_[size_t(found_)] = best_[size_t(found_)].score;
        keys_[size_t(found_)] = best_[size_t(found_)].key;
      }
      // Later keys must be better than the k-th, since ties go to the lowest key.
      least_ = std::nextafter(best_.back().score, infinity);
    }
    if (!(score >= least_)) return;
    scores_[size_t(found_)] = score;
    keys_[size_t(found_++)] = key;
  }

  // The k best of what was found, in order.
  void keep_best() {
    best_.resize(size_t(std::min(found_, k_)));
    if (found_ <= num_maxima) {
      int32_t place[num_maxima];
      rank(scores_.data(), int(found_), place);
      for (int64_t i = 0; i < found_; i++)
        if (place[i] < k_) best_[size_t(place[i])] = {scores_[size_t(i)], keys_[size_t(i)]};
      return;
    }
    std::vector<Candidate> &all = sorting_;
    all.resize(size_t(found_));
    for (size_t i = 0; i < all.size(); i++) all[i] = {scores_[i], keys_[i]};
    std::partial_sort(all.begin(), all.begin() + int64_t(best_.size()), all.end(),
                      [](const Candidate &a, const Candidate &b) {
                        return a.score > b.score || (a.score == b.score && a.key < b.key);
                      });
    std::copy(all.begin(), all.begin() + int64_t(best_.size()), best_.begin());
  }

  int64_t k_, found_ = 0;
  float least_ = 0;
  std::vector<float> scores_;
  std::vector<int64_t> keys_;
  std::vector<Candidate> best_, sorting_;
};

}  // namespace heedful
