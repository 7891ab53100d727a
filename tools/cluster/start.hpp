// Starts a local cluster: etcd, then its daemons; all of it or nothing.
//
// Each process is in the state file before it runs, so `down` finds it even if this process is
// killed meanwhile.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/remote/lent_hbm.hpp"
#include "tools/cluster/etcd.hpp"
#include "tools/cluster/interrupts.hpp"
#include "tools/cluster/stop.hpp"

namespace vmem::tools::local_cluster {

struct StartOptions {
  std::uint32_t nodes = 3;
  // Of each node: what it lends, and what copies of published regions may take; 0: none.
  std::uint64_t memory_bytes = std::uint64_t{1} << 30, copies_bytes = std::uint64_t{256} << 20;
  // HBM that each node lends besides, of which GPU; if there are more nodes, in turn. Empty: none.
  std::vector<runtime::HbmLoan> hbm = {};
  std::string name = "local";  // of the cluster

  std::optional<runtime::HbmLoan> hbm_of(std::uint32_t number) const {  // of a node, from 1
    return hbm.empty() ? std::nullopt : std::optional(hbm[(number - 1) % hbm.size()]);
  }
};

// What it takes from the machine; tests replace parts of it.
struct Surroundings {
  std::string vmem, etcd;  // paths of the programs
  std::uint64_t available_bytes = 0;
  std::function<Result<EtcdPorts>()> choose_ports = free_ports;
  std::chrono::milliseconds etcd_limit{20'000}, daemons_limit{30'000};
  Patience patience;
};

// Errors: INVALID_OPTION, naming what is out of its range.
Status check_options(const StartOptions& options, std::uint64_t available_bytes);

class Start {
 public:
  // The folder, locked, and the signals have to outlive it.
  Start(const Folder& folder, StartOptions options, Surroundings surroundings, const Interrupts& interrupts);

  // Returns once every daemon is a member. On failure nothing is left, and the message ends with
  // the last lines of the log of the process that failed.
  // Errors: INVALID_OPTION for files in the folder that are not a cluster's; DRIVER if a process
  // ends; TIMEOUT, also after a signal; those of the folder.
  Result<State> run();

 private:
  Status start_all();
  Status check_files() const;
  Status start_etcd();
  Result<bool> try_etcd();
  Status wait_for_etcd() const;
  Status start_daemons();
  Status wait_for_members() const;
  LaunchCommand daemon_command(std::uint32_t number) const;
  Status launch(const std::string& name, const LaunchCommand& command);
  Status check_processes() const;
  std::string with_log(std::string message, const std::string& name) const;
  Error take_back(Error error) const;

  const Folder& folder_;
  const StartOptions options_;
  const Surroundings surroundings_;
  const Interrupts& interrupts_;
  State state_;
  bool recorded_ = false;  // the folder has files of this cluster
};

}  // namespace vmem::tools::local_cluster
