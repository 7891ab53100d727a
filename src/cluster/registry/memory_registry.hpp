// A registry in this process, for tests and simulations: no cluster runs on it. Each request is
// carried out as it is posted, and its reply waits for poll().
#pragma once

#include "cluster/registry/registry_state.hpp"

namespace vmem::cluster {

// One client. Several may share a state, all on one thread.
class MemoryRegistry final : public Registry {
 public:
  explicit MemoryRegistry(RegistryState& state) : state_(state) {}

  RequestId post(RegistryRequest request) override;
  void poll(std::vector<Reply>& replies) override;

 private:
  RegistryState& state_;
  std::vector<Reply> replies_;
  std::uint64_t last_id_ = 0;
};

}  // namespace vmem::cluster
