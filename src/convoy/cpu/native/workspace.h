// Temporary memory for kernels, kept between calls.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace convoy {

// Fresh pages cost more than many of the kernels that would use them, so buffers are handed back
// and lent again. There are never more of them than calls that ran at one time.
class Workspaces {
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  struct Buffer {
    std::unique_ptr<char, Free> data;
    size_t bytes = 0;
  };

 public:
  class Lease {
   public:
    Lease(Workspaces* owner, Buffer buffer) : owner_(owner), buffer_(std::move(buffer)) {}
    Lease(Lease&&) = default;
    ~Lease() {
      if (buffer_.data) owner_->Return(std::move(buffer_));
    }
    char* data() const { return buffer_.data.get(); }

   private:
    Workspaces* owner_;
    Buffer buffer_;
  };

  Lease Acquire(size_t bytes) {
    if (bytes == 0) return Lease(this, Buffer());
    Buffer buffer = TakeFreed();
    if (buffer.bytes < bytes) buffer = Allocate(bytes);
    return Lease(this, std::move(buffer));
  }

 private:
  static constexpr size_t kAlignment = 64;

  Buffer TakeFreed() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return Buffer();
    Buffer last = std::move(free_.back());
    free_.pop_back();
    return last;
  }

  void Return(Buffer buffer) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(buffer));
  }

  static Buffer Allocate(size_t bytes) {
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    Buffer buffer;
    buffer.data.reset(static_cast<char*>(std::aligned_alloc(kAlignment, rounded)));
    if (!buffer.data) throw std::bad_alloc();
    buffer.bytes = rounded;
    return buffer;
  }

  std::mutex mutex_;
  std::vector<Buffer> free_;
};

}  // namespace convoy
