// Temporary memory for kernels, kept between calls.
#pragma once

#include <sched.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace convoy {

// Fresh pages cost more than many of the kernels that use them, so buffers are returned and reused,
// by the core that used them last: its cache still holds them. There are at most as many buffers of
// a core as calls that began on it at the same time.
class Workspaces {
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  struct Buffer {
    std::unique_ptr<char, Free> data;
    size_t bytes = 0;
  };
  struct Shelf {
    std::mutex mutex;
    std::vector<Buffer> free;
  };

 public:
  class Lease {
   public:
    Lease(Shelf* shelf, Buffer buffer) : shelf_(shelf), buffer_(std::move(buffer)) {}
    Lease(Lease&&) = default;
    ~Lease() {
      if (buffer_.data) Return(shelf_, std::move(buffer_));
    }
    char* data() const { return buffer_.data.get(); }

   private:
    Shelf* shelf_;
    Buffer buffer_;
  };

  Lease Acquire(size_t bytes) {
    if (bytes == 0) return Lease(nullptr, Buffer());
    Shelf& shelf = ShelfOfThisCore();
    Buffer buffer = TakeFreed(&shelf);
    if (buffer.bytes < bytes) buffer = Allocate(bytes);
    return Lease(&shelf, std::move(buffer));
  }

 private:
  static constexpr size_t kAlignment = 64;
  // Further cores share the buffers of these.
  static constexpr size_t kShelves = 256;

  Shelf& ShelfOfThisCore() {
    const int core = sched_getcpu();
    return shelves_[core < 0 ? 0 : static_cast<size_t>(core) % kShelves];
  }

  static Buffer TakeFreed(Shelf* shelf) {
    std::lock_guard<std::mutex> lock(shelf->mutex);
    if (shelf->free.empty()) return Buffer();
    Buffer last = std::move(shelf->free.back());
    shelf->free.pop_back();
    return last;
  }

  static void Return(Shelf* shelf, Buffer buffer) {
    std::lock_guard<std::mutex> lock(shelf->mutex);
    shelf->free.push_back(std::move(buffer));
  }

  static Buffer Allocate(size_t bytes) {
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    Buffer buffer;
    buffer.data.reset(static_cast<char*>(std::aligned_alloc(kAlignment, rounded)));
    if (!buffer.data) throw std::bad_alloc();
    buffer.bytes = rounded;
    return buffer;
  }

  std::array<Shelf, kShelves> shelves_;
};

}  // namespace convoy
