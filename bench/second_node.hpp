// A second node for network figures: `vmem daemon`, a child process that dies with this one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/child_process.hpp"
#include "bench/gpu.hpp"
#include "bench/settings.hpp"

namespace vmem::bench {

// A vmem program of the same build: this one or, in a test, the one beside it.
std::string vmem_program();

class SecondNode {
 public:
  // Listens on a free loopback port, with the channels, secret, certificates and fabric that the
  // runtime of these settings uses. Errors: INVALID_OPTION, the daemon's in its words.
  static Result<SecondNode> start(const Settings& settings, std::uint64_t lend_bytes);
  // The same, lending HBM of the GPU of these settings instead of memory.
  static Result<SecondNode> start_with_hbm(const Settings& settings, const Gpu& gpu, std::uint64_t lend_bytes);
  // The same, a member of the cluster of this address.
  static Result<SecondNode> start_in(const std::string& cluster, const Settings& settings, std::uint64_t lend_bytes);
  const std::string& address() const { return address_; }
  // Pages that it has sent from its HBM: from there, and through staging.
  struct HbmSends {
    std::uint64_t direct = 0, staged = 0;
  };
  // REQUIRES: start_with_hbm. Errors: DRIVER, TIMEOUT.
  Result<HbmSends> hbm_sends() const;

 private:
  static Result<SecondNode> start(const Settings& settings, const std::vector<std::string>& what);
  SecondNode(std::unique_ptr<ChildProcess> process, std::string address)
      : process_(std::move(process)), address_(std::move(address)) {}
  std::unique_ptr<ChildProcess> process_;
  std::string address_;
};

}  // namespace vmem::bench
