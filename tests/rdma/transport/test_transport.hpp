// The transports for tests between two processes, by name: "ucx" (over TCP) or "stream".
#pragma once

#include <string>

#include "rdma/transport/stream/stream_transport.hpp"
#include "rdma/transport/ucx/ucx.hpp"

namespace vmem::rdma {

struct TestTransport {
  std::string kind;
  NodeIdentity self;
  std::string listen;
  KeyringRef keyring;
  std::uint32_t channels = 1;
};

inline Result<std::unique_ptr<Transport>> make_test_transport(const TestTransport& of, const Clock& clock,
                                                              Receiver& receiver) {
  constexpr ClusterParameters kParameters{0x7d0000000000, 1ull << 40, 2 << 20};
  if (of.kind == "stream")
    return create_stream_transport({.self = of.self,
                                    .parameters = kParameters,
                                    .listen = of.listen,
                                    .keyring = of.keyring,
                                    .clock = &clock,
                                    .receiver = &receiver,
                                    .channels = of.channels});
  return create_ucx_transport({.self = of.self,
                               .parameters = kParameters,
                               .listen = of.listen,
                               .keyring = of.keyring,
                               .clock = &clock,
                               .receiver = &receiver,
                               .channels = of.channels,
                               .settings = {{"TLS", "tcp"}}});
}

}  // namespace vmem::rdma
