// Reads regions/ and names/ once a period, and soon when a peer has mentioned something newer.
#pragma once

#include <cstdint>

#include "cluster/directory/directory_config.hpp"
#include "cluster/directory/region_index.hpp"
#include "cluster/enrollment/registry_calls.hpp"

namespace vmem::cluster::directory {

class RegionPoll {
 public:
  RegionPoll(RegistryCalls& calls, const DirectoryConfig& config, RegionIndex& index)
      : calls_(calls), config_(config), index_(index) {}

  void start() { on_ = true; }
  void stop();
  void poke() { poked_ = true; }
  // The index shows all that was acknowledged before this time. 0: nothing was read yet
  std::uint64_t fresh_us() const noexcept { return std::min(regions_us_, names_us_); }

  bool step(std::uint64_t now_us, RegionIndex::Changes& changes);
  std::uint64_t due_us() const;

 private:
  bool take(std::uint64_t now_us, RegionIndex::Changes& changes);

  RegistryCalls& calls_;
  const DirectoryConfig& config_;
  RegionIndex& index_;
  bool on_ = false, poked_ = false;
  RegistryCall regions_, names_;
  std::uint64_t sent_us_ = 0;
  std::uint64_t regions_us_ = 0, names_us_ = 0;
};

}  // namespace vmem::cluster::directory
