// A member of a cluster for one errand: it lends nothing, keeps nothing, and takes no addresses.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.hpp"
#include "runtime/cluster/directory_service.hpp"
#include "runtime/cluster/member.hpp"

namespace vmem::runtime {

class Visitor {
 public:
  struct Config {
    RegistryAccess registry;
    // As for programs (NodeConfig): what they prove decides on whose regions it may act.
    std::string secret, certificates, fabric;
  };
  // Waits for at most most_us. Errors: those of open_registry, of credentials and of Member::join;
  // INVALID_OPTION where there is no cluster yet.
  static Result<std::unique_ptr<Visitor>> join(const Config& config, std::uint64_t most_us);
  ~Visitor();

  // Nobody can open the region from then on. Waits for its home for at most wait_us, and a little.
  // If the home is gone, this node takes its place.
  // Errors: TIMEOUT; INVALID_OPTION: it is another tenant's, or its home refuses the credentials;
  // INVALID_VALUE: no region can have the name.
  Status remove(const std::string& name, std::uint64_t wait_us) { return directory_->remove(name, wait_us); }

 private:
  Visitor() = default;
  Status start(const Config& config, std::uint64_t most_us);

  SteadyClock clock_;
  Fence fence_{clock_};
  // In the order of use: a later member calls an earlier one.
  std::unique_ptr<rdma::Node> node_;
  std::unique_ptr<rdma::Parcels> parcels_;
  std::unique_ptr<DirectoryService> directory_;
  std::unique_ptr<Member> member_;
};

}  // namespace vmem::runtime
