// A second node for figures of the network: `vmem daemon`, a process of this machine that ends with this one.
#pragma once

#include <memory>
#include <string>

#include "bench/child_process.hpp"
#include "bench/settings.hpp"

namespace vmem::bench {

class SecondNode {
 public:
  // On a free port of the loopback device, with as many channels as the settings ask for. Errors: those of the daemon, in its words.
  static Result<SecondNode> start(const Settings& settings, std::uint64_t lend_bytes);
  const std::string& address() const { return address_; }

 private:
  SecondNode(std::unique_ptr<ChildProcess> process, std::string address)
      : process_(std::move(process)), address_(std::move(address)) {}
  std::unique_ptr<ChildProcess> process_;
  std::string address_;
};

}  // namespace vmem::bench
