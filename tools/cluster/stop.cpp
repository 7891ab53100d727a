#include "tools/cluster/stop.hpp"

#include <span>

namespace vmem::tools::local_cluster {
namespace {

const std::string kUnwritten = std::string(kStateFile) + kNewSuffix;

Status end_those(const State& state, std::span<const ManagedProcess> processes, const Patience& patience,
                 Stopped& stopped) {
  std::vector<ProcessId> ids;
  std::vector<std::string> names;
  for (const ManagedProcess& each : processes) {
    if (!lives(state, each)) continue;
    ids.push_back(each.id);
    names.push_back(each.name);
  }
  VMEM_ASSIGN(const auto killed, end_processes(ids, patience));
  for (const std::size_t place : killed) stopped.killed.push_back(names[place]);
  stopped.ended.insert(stopped.ended.end(), names.begin(), names.end());
  return {};
}

// Also of processes that were about to be started. The state last: without it nobody knows whose
// the other files are.
Status remove_files(const Folder& folder, const State& state) {
  for (const std::string& name : own_files(state.nodes)) VMEM_TRY(folder.remove(name));
  VMEM_TRY(folder.remove(kUnwritten));
  VMEM_TRY(folder.remove(kStateFile));
  if (state.made_folder) folder.remove_itself();
  return {};
}

}  // namespace

Result<Stopped> stop(const Folder& folder, const State& state, const Patience& patience) {
  Stopped stopped;
  const std::span<const ManagedProcess> all = state.processes;
  const std::size_t etcds = all.empty() ? 0 : 1;
  VMEM_TRY(end_those(state, all.subspan(etcds), patience, stopped));
  VMEM_TRY(end_those(state, all.first(etcds), patience, stopped));
  VMEM_TRY(remove_files(folder, state));
  return stopped;
}

Result<bool> remove_unwritten(const Folder& folder) {
  if (!folder.has(kUnwritten)) return false;
  VMEM_TRY(folder.remove(kUnwritten));
  folder.remove_itself();
  return true;
}

}  // namespace vmem::tools::local_cluster
