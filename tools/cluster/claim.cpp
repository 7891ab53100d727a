#include "tools/cluster/claim.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace vmem::tools::local_cluster {
namespace {

// Names of processes that have ended, or that live.
std::vector<std::string> names_of(const State& state, bool living) {
  std::vector<std::string> names;
  for (const ManagedProcess& each : state.processes)
    if (lives(state, each) == living) names.push_back(each.name);
  return names;
}

Status check_not_up(const Folder& folder, const State& state) {
  if (!state.started || names_of(state, true).empty()) return {};
  const std::vector<std::string> ended = names_of(state, false);
  return fail(
      VMEM_ERROR_INVALID_OPTION,
      fmt::format("the cluster {} is up already{}, in {}; end it with `vmem cluster down`, or give --dir another "
                  "folder",
                  state.address, ended.empty() ? "" : fmt::format(" (without {})", fmt::join(ended, ", ")),
                  folder.path()));
}

}  // namespace

Result<Claim> claim(const std::string& path, const Patience& patience) {
  VMEM_ASSIGN(Folder folder, Folder::make(path));
  VMEM_ASSIGN(const auto state, read_state(folder));
  if (!state) {
    VMEM_ASSIGN(const bool removed, remove_unwritten(folder));
    VMEM_ASSIGN(Folder empty, removed ? Folder::make(path) : Result<Folder>(std::move(folder)));
    return Claim{std::move(empty), {}};
  }
  VMEM_TRY(check_not_up(folder, *state));
  VMEM_ASSIGN(Stopped stopped, stop(folder, *state, patience));
  // It may have removed the folder.
  VMEM_ASSIGN(Folder again, state->made_folder ? Folder::make(path) : Result<Folder>(std::move(folder)));
  return Claim{std::move(again), std::move(stopped.ended)};
}

}  // namespace vmem::tools::local_cluster
