// Memory that is left as it comes, aligned for vectors.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace heedful {

// Allocators keep smaller pieces for the next call. What is larger than this comes from the system each time: a few huge
// pages come sooner than thousands of small ones.
constexpr size_t comes_from_system = size_t(32) << 20, huge_page = size_t(2) << 20;

template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t size) {
    if (size <= 0) return;
    const size_t wanted = size_t(size) * sizeof(T);
    const size_t alignment = wanted < comes_from_system ? 64 : huge_page;
    const size_t bytes = (wanted + alignment - 1) / alignment * alignment;
    data_.reset(static_cast<T *>(std::aligned_alloc(alignment, bytes)));
    if (!data_) throw std::bad_alloc();
#if defined(__linux__)
    if (alignment == huge_page) madvise(data_.get(), bytes, MADV_HUGEPAGE);
#endif
  }
  T *get() const { return data_.get(); }
  T &operator[](int64_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(T *data) const { std::free(data); }
  };
  std::unique_ptr<T, Free> data_;
};

}  // namespace heedful
