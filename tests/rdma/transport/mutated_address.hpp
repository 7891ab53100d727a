// UCX addresses that a hostile peer might send: a worker's, mutated.
#pragma once

#include <random>
#include <stdexcept>

#include "rdma/transport/ucx/ucx_exchange.hpp"
#include "rdma/transport/ucx/ucx_handles.hpp"

namespace vmem::rdma {

inline const UcxSettings kTcpOnLoopback{{"TLS", "tcp"}, {"NET_DEVICES", "lo"}};

// A worker and its address.
class AddressOwner {
 public:
  AddressOwner() {
    auto made = UcxWorker::create(*UcxContext::create(*Ucx::load(), kTcpOnLoopback));
    if (!made) throw std::runtime_error(made.error().message);
    worker_ = *made;
    // UCX 1.13 calls a message handler without checking that there is one.
    if (!worker_->on_message(&drop, nullptr)) throw std::runtime_error("no handler");
    address_ = *worker_->address();
  }
  const UcxAddress& address() const noexcept { return address_; }
  UcxWorker& worker() noexcept { return *worker_; }

 private:
  static ucs_status_t drop(void*, const void*, std::size_t, void*, std::size_t, const ucp_am_recv_param_t*) {
    return UCS_OK;
  }
  UcxWorkerRef worker_;
  UcxAddress address_;
};

// Replaces one to three bytes of `address`, or flips a bit of each.
inline UcxAddress mutated(UcxAddress address, std::mt19937& random) {
  for (std::size_t left = 1 + random() % 3; left != 0; --left) {
    std::byte& byte = address[random() % address.size()];
    const std::byte bit{static_cast<unsigned char>(1u << random() % 8)};
    byte = random() % 2 == 0 ? byte ^ bit : std::byte{static_cast<unsigned char>(random())};
  }
  return address;
}

}  // namespace vmem::rdma
