// Wakes the thread that runs an io_context. Posting cannot fail: the context keeps the handler in
// memory that is part of the signal, so at most one is posted at a time. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cstddef>
#include <new>

namespace vmem::rdma::stream {

class WakeSignal {
 public:
  void post(boost::asio::io_context& context) noexcept {
    if (!posted_.exchange(true)) boost::asio::post(context, Handler{this});
  }

 private:
  template <class T>
  struct Allocator {
    using value_type = T;
    WakeSignal* owner;
    explicit Allocator(WakeSignal* of) : owner(of) {}
    template <class U>
    Allocator(const Allocator<U>& other) : owner(other.owner) {}
    T* allocate(std::size_t count) {
      static_assert(alignof(T) <= alignof(std::max_align_t));
      if (count * sizeof(T) > sizeof(owner->memory_)) throw std::bad_alloc();
      return reinterpret_cast<T*>(owner->memory_.data());
    }
    void deallocate(T*, std::size_t) noexcept {}
    bool operator==(const Allocator&) const = default;
  };
  struct Handler {
    WakeSignal* owner;
    using allocator_type = Allocator<void*>;
    allocator_type get_allocator() const noexcept { return allocator_type(owner); }
    void operator()() const { owner->posted_.store(false); }  // the context has freed memory_
  };

  std::atomic<bool> posted_{false};
  alignas(std::max_align_t) std::array<std::byte, 256> memory_;
};

}  // namespace vmem::rdma::stream
