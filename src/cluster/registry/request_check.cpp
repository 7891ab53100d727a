#include "cluster/registry/request_check.hpp"

#include <fmt/format.h>

#include <set>
#include <string_view>

#include "base/printable.hpp"

namespace vmem::cluster {
namespace {

Status refuse(std::string message) { return fail(VMEM_ERROR_INVALID_VALUE, std::move(message)); }

Status check_size(const Commit& commit) {
  if (commit.conditions.size() > kMostConditions || commit.edits.size() > kMostEdits)
    return refuse(fmt::format("a commit of {} conditions and {} edits: at most {} and {} are possible; split it",
                              commit.conditions.size(), commit.edits.size(), kMostConditions, kMostEdits));
  std::size_t bytes = 0;
  for (const Condition& each : commit.conditions) bytes += each.key.size();
  for (const Edit& each : commit.edits) bytes += each.key.size() + (each.value ? each.value->size() : 0);
  if (bytes > kMostCommitBytes)
    return refuse(
        fmt::format("a commit of {} bytes of keys and values: at most {} are possible", bytes, kMostCommitBytes));
  return {};
}

Status check(const Commit& commit) {
  VMEM_TRY(check_size(commit));
  std::set<std::string_view> edited;
  for (const Edit& each : commit.edits) {
    if (!edited.insert(each.key).second)
      return refuse(fmt::format("a commit edits '{}' twice; edit each key once", printable(each.key)));
  }
  return {};
}

Status check(const GrantLease& grant) {
  if (grant.seconds >= 1 && grant.seconds <= kMostLeaseSeconds) return {};
  return refuse(fmt::format("a lease of {} s: 1 to {} s are possible", grant.seconds, kMostLeaseSeconds));
}

}  // namespace

Status check_request(const RegistryRequest& request) {
  if (const auto* commit = std::get_if<Commit>(&request)) return check(*commit);
  if (const auto* grant = std::get_if<GrantLease>(&request)) return check(*grant);
  return {};
}

}  // namespace vmem::cluster
