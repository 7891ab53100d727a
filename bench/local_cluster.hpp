// A cluster on this machine for a scenario: etcd and one daemon with room for copies, by
// `vmem cluster up`, in a folder of its own. Ends with this.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.hpp"
#include "bench/settings.hpp"

namespace vmem::bench {

class LocalCluster {
 public:
  // What its daemon has for others.
  struct Lends {
    std::uint64_t memory_bytes = std::uint64_t{64} << 20;
    std::uint64_t copies_bytes = 0;  // for copies of published regions
  };
  // With the secret and certificates that the runtime of these settings uses. Errors:
  // INVALID_OPTION, in the words of `vmem cluster up`.
  static Result<LocalCluster> start(const Settings& settings, const Lends& lends);
  LocalCluster(LocalCluster&& other) noexcept;
  LocalCluster& operator=(LocalCluster&&) = delete;
  ~LocalCluster();
  const std::string& address() const { return address_; }  // for the option cluster

 private:
  explicit LocalCluster(std::string folder) : folder_(std::move(folder)) {}
  std::string folder_, address_;
};

}  // namespace vmem::bench
