// Tasks shared out over threads: OpenMP where there is one (it is the runtime that PyTorch uses), else std::thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace heedful {

// body(task, thread) for every task, in any order.
template <class Body>
void parallel_for(int64_t threads, int64_t tasks, Body body) {
  if (threads > tasks) threads = tasks;
  if (threads <= 1) {
    for (int64_t task = 0; task < tasks; task++) body(task, int64_t(0));
    return;
  }
  std::atomic<int64_t> next{0};
  auto work = [&](int64_t thread) {
    for (int64_t task; (task = next.fetch_add(1)) < tasks;) body(task, thread);
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
