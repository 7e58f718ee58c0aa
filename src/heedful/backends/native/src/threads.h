// Tasks shared out over threads: OpenMP where there is one (it is the runtime that PyTorch uses), else std::thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace heedful {

// body(task, thread) for every task, in any order. A thread has a share of its own, the same in every call, so that a core
// finds in its cache what it read or wrote before; then it helps the others with theirs.
template <class Body>
void parallel_for(int64_t threads, int64_t tasks, Body body) {
  if (threads > tasks) threads = tasks;
  if (threads <= 1) {
    for (int64_t task = 0; task < tasks; task++) body(task, int64_t(0));
    return;
  }
  const auto first = [&](int64_t thread) { return thread * tasks / threads; };
  std::vector<std::atomic<int64_t>> next(static_cast<size_t>(threads));
  for (int64_t thread = 0; thread < threads; thread++) next[size_t(thread)] = first(thread);
  auto work = [&](int64_t thread) {
    for (int64_t i = 0; i < threads; i++) {
      const int64_t owner = (thread + i) % threads;
      for (int64_t task; (task = next[size_t(owner)].fetch_add(1)) < first(owner + 1);) body(task, thread);
    }
  };
#if defined(_OPENMP)
#pragma omp parallel for num_threads(int(threads)) schedule(static, 1)
  for (int64_t thread = 0; thread < threads; thread++) work(thread);
#else
  std::vector<std::thread> others;
  for (int64_t thread = 1; thread < threads; thread++) others.emplace_back(work, thread);
  work(0);
  for (std::thread &other : others) other.join();
#endif
}

}  // namespace heedful
