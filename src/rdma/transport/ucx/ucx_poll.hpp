// The descriptors that a UcxTransport's progressing thread waits for: one epoll instance.
#pragma once

#include <fmt/format.h>
#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"

namespace vmem::rdma {

class UcxPoll {
 public:
  // Keys of descriptors. A link's descriptors have the key of their peer's id; loops share one key.
  static constexpr std::uint64_t kLoopKey = UINT64_MAX;
  static constexpr std::uint64_t kWakeupKey = UINT64_MAX - 1;
  enum class Until : std::uint8_t { readable, readable_or_writable };

  void open() { epoll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC)); }
  int descriptor() const noexcept { return epoll_.get(); }

  Status watch(int descriptor, std::uint64_t key) { return control(EPOLL_CTL_ADD, descriptor, key, Until::readable); }
  Status change(int descriptor, std::uint64_t key, Until until) {
    return control(EPOLL_CTL_MOD, descriptor, key, until);
  }
  void forget(int descriptor) { (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr); }
  // The events there are now; waits for none.
  std::span<const epoll_event> ready(std::span<epoll_event> room) const {
    const int count = ::epoll_wait(epoll_.get(), room.data(), static_cast<int>(room.size()), 0);
    return room.first(count < 0 ? 0 : static_cast<std::size_t>(count));
  }

 private:
  Status control(int operation, int descriptor, std::uint64_t key, Until until) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = key}};
    if (until == Until::readable_or_writable) event.events |= EPOLLOUT;
    if (::epoll_ctl(epoll_.get(), operation, descriptor, &event) == 0) return {};
    return fail(VMEM_ERROR_INTERNAL, fmt::format("epoll_ctl: {}", std::strerror(errno)), errno);
  }

  FileDescriptor epoll_;
};

}  // namespace vmem::rdma
