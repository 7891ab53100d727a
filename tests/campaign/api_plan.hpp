// The configuration of one API fuzzer seed: machine, chain of tiers, and amount of work.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace vmem::test {

struct ApiPlan {
  // `daemon`: the address of a lending node; "" if there is none.
  ApiPlan(std::uint64_t seed, const std::string& daemon);
  std::string machine() const;  // for the emulated driver
  std::vector<std::pair<std::string, std::string>> options() const;
  std::string words() const;

  static constexpr std::uint64_t kBase = 0x7d0000000000;
  static constexpr std::uint64_t kSpaceBytes = std::uint64_t{4} << 30;
  // Longest wait of a call for disks and nodes.
  static constexpr std::uint64_t kCallWaitMs = 2000;

  std::uint64_t seed;
  int devices = 1;
  std::uint64_t hbm_mib = 0, host_mib = 0, nvme_mib = 0;
  bool peers = false;
  std::string remote;
  std::uint64_t working_mib = 0;  // allocated by all threads together
  std::string page, prefetch, acquire_wait, compress;
  bool protect = false;
  // No allocation is honest: addresses are freed and reused while other threads use them.
  bool wild = false;
  bool ends_full = false;  // allocations are left for vmem_shutdown
  int threads = 1;
  int steps = 0;  // of each thread
};

}  // namespace vmem::test
