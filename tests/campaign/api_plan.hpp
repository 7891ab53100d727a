// What one seed of the API fuzzer runs: the machine, the chain of tiers, and how much is done on it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace vmem::test {

struct ApiPlan {
  // `daemon`: the address of a node that lends; "" where there is none.
  ApiPlan(std::uint64_t seed, const std::string& daemon);
  std::string machine() const;  // for the emulated driver
  std::vector<std::pair<std::string, std::string>> options() const;
  std::string words() const;

  static constexpr std::uint64_t kBase = 0x7d0000000000;
  static constexpr std::uint64_t kSpaceBytes = std::uint64_t{4} << 30;
  // What a call may wait for disks and nodes.
  static constexpr std::uint64_t kCallWaitMs = 2000;

  std::uint64_t seed;
  int devices = 1;
  std::uint64_t hbm_mib = 0, host_mib = 0, nvme_mib = 0;
  bool peers = false;
  std::string remote;
  std::uint64_t working_mib = 0;  // that the threads allocate in all
  std::string page, prefetch, acquire_wait, compress;
  bool protect = false;
  // No allocation is honest: addresses are freed and given out anew while other threads use them.
  bool wild = false;
  bool ends_full = false;  // allocations are left for vmem_shutdown
  int threads = 1;
  int steps = 0;  // of each thread
};

}  // namespace vmem::test
