// rdma_peer (peer_program.cpp) as a child process, in this or another network namespace.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "rdma/process.hpp"

namespace vmem::rdma {

class PeerProcess : public Process {
 public:
  explicit PeerProcess(std::vector<std::string> arguments, const std::string& network_namespace = "")
      : Process(command(std::move(arguments), network_namespace)) {}
  // The first line of a listening peer: its address.
  std::string address() { return first_line(); }

 private:
  static std::vector<std::string> command(std::vector<std::string> arguments, const std::string& network_namespace) {
    arguments.insert(arguments.begin(), std::filesystem::canonical("/proc/self/exe").parent_path() / "rdma_peer");
    if (!network_namespace.empty()) {
      const std::vector<std::string> prefix = {"ip", "netns", "exec", network_namespace};
      arguments.insert(arguments.begin(), prefix.begin(), prefix.end());
    }
    return arguments;
  }
};

}  // namespace vmem::rdma
