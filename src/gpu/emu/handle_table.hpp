// Handles given to the program. Their values are not used again for other objects, so a stale handle is recognised; unless the driver
// is known to use them again, and programs have to cope.
#pragma once

#include <algorithm>
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
  // Tables that begin with different remainders of 16 have no value in common.
  explicit HandleTable(Values values = Values::used_once, std::uint64_t begin = 0x1000)
      : values_(values), last_(begin) {}

  Handle insert(std::shared_ptr<T> object) {
    const std::unique_lock lock(mutex_);
    const std::uint64_t value = next_value();
    objects_.emplace(value, std::move(object));
    return to_handle(value);
  }

  // Gives an object a handle that its predecessor had.
  void insert_again(Handle handle, std::shared_ptr<T> object) {
    const std::unique_lock lock(mutex_);
    objects_.emplace(to_value(handle), std::move(object));
  }

  std::shared_ptr<T> find(Handle handle) const {
    const std::shared_lock lock(mutex_);
    const auto found = objects_.find(to_value(handle));
    return found == objects_.end() ? nullptr : found->second;
  }

  // The last reference is the one that erases. Objects have one, unless `retain` gave out more.
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

  // One more reference to the handle of an object; a new one where the program has none left.
  Handle retain(const std::shared_ptr<T>& object) {
    {
      const std::unique_lock lock(mutex_);
      const auto found = std::ranges::find(objects_, object, [](const auto& entry) { return entry.second; });
      if (found != objects_.end()) {
        ++retained_[found->first];
        return to_handle(found->first);
      }
    }
    return insert(object);
  }

  // Erases what `doomed` says yes to.
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

  // The handle under which an object is known; linear, for rare questions.
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

  // Both REQUIRE the lock.
  std::uint64_t next_value() {
    // Spaced like addresses, and clear of the small values that name the default streams.
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
