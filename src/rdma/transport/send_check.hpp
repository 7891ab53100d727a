// Checks that every transport makes before it posts a send.
#pragma once

#include "rdma/transport/transport.hpp"

namespace vmem::rdma {

std::uint64_t payload_bytes(std::span<const ConstBytes> payload) noexcept;
// Errors: INVALID_VALUE.
Status check_send(const Send& send);

}  // namespace vmem::rdma
