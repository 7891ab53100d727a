#include "cluster/registry/request_text.hpp"

#include <fmt/format.h>

#include "base/printable.hpp"

namespace vmem::cluster {
namespace {

struct Describe {
  std::string operator()(const ReadPrefix& read) const {
    return fmt::format("reading the records '{}...'", printable(read.prefix));
  }
  std::string operator()(const Commit& commit) const {
    const std::string of = commit.edits.empty() ? "" : fmt::format(" of '{}'", printable(commit.edits[0].key));
    return fmt::format("committing {} edits{}", commit.edits.size(), of);
  }
  std::string operator()(const GrantLease& grant) const {
    return fmt::format("granting a lease of {} s", grant.seconds);
  }
  std::string operator()(const RenewLease& renew) const {
    return fmt::format("renewing lease {}", std::int64_t(renew.lease));
  }
  std::string operator()(const EndLease& end) const { return fmt::format("ending lease {}", std::int64_t(end.lease)); }
};

}  // namespace

std::string describe(const RegistryRequest& request) { return std::visit(Describe{}, request); }

}  // namespace vmem::cluster
