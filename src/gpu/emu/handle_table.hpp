// Handles given to the program. A value is not reused for another object, so a stale handle is
// detected. Exception: Values::used_again, for handles that the real driver is known to reuse.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace vmem::emu {

enum class Values { used_once, used_again };

template <class T, class Handle>
class HandleTable {
 public:
  // Tables whose `begin` has different remainders modulo 16 share no value.
  explicit HandleTable(Values values = Values::used_once, std::uint64_t begin = 0x1000)
      : values_(values), last_(begin) {}

  Handle insert(std::shared_ptr<T> object) {
    const std::unique_lock lock(mutex_);
    const std::uint64_t value = next_value();
    objects_.emplace(value, std::move(object));
    return to_handle(value);
  }

  // Inserts an object under its predecessor's handle.
  void insert_again(Handle handle, std::shared_ptr<T> object) {
    const std::unique_lock lock(mutex_);
    objects_.emplace(to_value(handle), std::move(object));
  }

  std::shared_ptr<T> find(Handle handle) const {
    const std::shared_lock lock(mutex_);
    const auto found = objects_.find(to_value(handle));
    return found == objects_.end() ? nullptr : found->second;
  }

  // Drops a reference; the last one removes the object. An object has one, unless `retain` added
  // more.
  std::shared_ptr<T> erase(Handle handle) {
    const std::unique_lock lock(mutex_);
    const auto found = objects_.find(to_value(handle));
    if (found == objects_.end()) return nullptr;
    if (const auto more = retained_.find(to_value(handle)); more != retained_.end()) {
      if (--more->second == 0) retained_.erase(more);
      return found->second;
    }
    auto object = std::move(found->second);
    objects_.erase(found);
    give_back(to_value(handle));
    return object;
  }

  // Adds a reference to the handle. Inserts its object again if the last reference was dropped.
  // REQUIRES: Values::used_once.
  void retain(Handle handle, std::shared_ptr<T> object) {
    const std::unique_lock lock(mutex_);
    if (!objects_.emplace(to_value(handle), std::move(object)).second) ++retained_[to_value(handle)];
  }

  // Erases the objects for which `doomed` returns true.
  template <class Predicate>
  void erase_if(Predicate doomed) {
    std::unordered_map<std::uint64_t, std::shared_ptr<T>> erased;  // destroyed after the lock
    const std::unique_lock lock(mutex_);
    for (auto it = objects_.begin(); it != objects_.end();) {
      if (!doomed(*it->second)) {
        ++it;
        continue;
      }
      give_back(it->first);
      erased.insert(objects_.extract(it++));
    }
  }

  // The handle of an object; a linear search, for rare calls.
  Handle handle_of(const T* object) const {
    const std::shared_lock lock(mutex_);
    for (const auto& [value, known] : objects_)
      if (known.get() == object) return to_handle(value);
    return Handle{};
  }

  bool empty() const {
    const std::shared_lock lock(mutex_);
    return objects_.empty();
  }

 private:
  static Handle to_handle(std::uint64_t value) {
    if constexpr (std::is_pointer_v<Handle>)
      return reinterpret_cast<Handle>(value);
    else
      return value;
  }
  static std::uint64_t to_value(Handle handle) {
    if constexpr (std::is_pointer_v<Handle>)
      return reinterpret_cast<std::uint64_t>(handle);
    else
      return handle;
  }

  // Both REQUIRE mutex_.
  std::uint64_t next_value() {
    // Spaced like addresses, and above the small values that name the default streams.
    if (free_.empty()) return last_ += 16;
    const std::uint64_t value = free_.back();
    free_.pop_back();
    return value;
  }
  void give_back(std::uint64_t value) {
    if (values_ == Values::used_again) free_.push_back(value);
  }

  mutable std::shared_mutex mutex_;  // leaf
  const Values values_;
  std::uint64_t last_;
  std::vector<std::uint64_t> free_;
  std::unordered_map<std::uint64_t, std::shared_ptr<T>> objects_;
  std::unordered_map<std::uint64_t, unsigned> retained_;  // references beyond the first
};

}  // namespace vmem::emu
