// Memory that is left as it comes, aligned for vectors.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace heedful {

template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t size) {
    if (size <= 0) return;
    const size_t bytes = (size_t(size) * sizeof(T) + 63) / 64 * 64;
    data_.reset(static_cast<T *>(std::aligned_alloc(64, bytes)));
    if (!data_) throw std::bad_alloc();
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
