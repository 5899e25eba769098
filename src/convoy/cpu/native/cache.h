// A bounded cache that drops the least recently used entry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace convoy {

// Values are shared pointers: one that is dropped while it runs lives until it is done.
template <typename Value>
class Cache {
 public:
  using Key = std::vector<int64_t>;

  explicit Cache(size_t capacity) : capacity_(capacity) {}

  template <typename Make>
  std::shared_ptr<const Value> Get(const Key& key, Make&& make) {
    if (auto found = Find(key)) return found;
    // Made outside the lock: it takes milliseconds, in which other threads can look up theirs. If
    // two threads miss the same key at once, both make it, and the first one is kept.
    std::shared_ptr<const Value> made = make();
    return Insert(key, std::move(made));
  }

  size_t size() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return entries_.size();
  }

 private:
  struct Entry {
    std::shared_ptr<const Value> value;
    typename std::list<Key>::iterator place;
  };

  std::shared_ptr<const Value> Find(const Key& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = entries_.find(key);
    if (found == entries_.end()) return nullptr;
    order_.splice(order_.begin(), order_, found->second.place);
    return found->second.value;
  }

  std::shared_ptr<const Value> Insert(const Key& key, std::shared_ptr<const Value> value) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = entries_.find(key);
    if (found != entries_.end()) return found->second.value;
    order_.push_front(key);
    entries_.emplace(key, Entry{value, order_.begin()});
    if (entries_.size() > capacity_) {
      entries_.erase(order_.back());
      order_.pop_back();
    }
    return value;
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::list<Key> order_;  // most recently used first
  std::map<Key, Entry> entries_;
};

}  // namespace convoy
