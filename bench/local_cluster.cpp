#include "bench/local_cluster.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "bench/child_process.hpp"
#include "bench/second_node.hpp"

namespace vmem::bench {
namespace {

constexpr std::chrono::seconds kMost{60};

Result<std::string> cluster(const std::string& folder, std::vector<std::string> words,
                            const ChildProcess::Environment& environment = {}) {
  words.insert(words.begin(), {vmem_program(), "cluster"});
  words.insert(words.end(), {"--dir", folder + "/cluster"});
  VMEM_ASSIGN(const auto process, ChildProcess::start(std::move(words), environment));
  return process->output(kMost);
}

}  // namespace

Result<LocalCluster> LocalCluster::start(const Settings& settings, const Lends& lends) {
  VMEM_ASSIGN(const Options options, options_named(settings, {"secret", "certificates"}));
  std::string folder = (std::filesystem::temp_directory_path() / "vmem-bench-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr)
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("{}: {}", folder, std::strerror(errno)), errno);
  LocalCluster started(std::move(folder));
  std::vector<std::string> up_words{"up", "--nodes", "1", "--memory", std::to_string(lends.memory_bytes)};
  if (lends.copies_bytes != 0) up_words.insert(up_words.end(), {"--copies", std::to_string(lends.copies_bytes)});
  ChildProcess::Environment trust;
  if (!options.secret.empty()) trust.emplace_back("VMEM_SECRET", options.secret);
  if (!options.certificates.empty()) trust.emplace_back("VMEM_CERTIFICATES", options.certificates);
  const auto up = cluster(started.folder_, std::move(up_words), trust);
  if (!up)
    return fail(
        VMEM_ERROR_INVALID_OPTION,
        fmt::format("no cluster could be started here: {}; or name one that runs (VMEM_CLUSTER)", up.error().message));
  VMEM_ASSIGN(started.address_, cluster(started.folder_, {"status", "--address"}));
  started.address_.erase(started.address_.find_last_not_of(" \n") + 1);
  return started;
}

LocalCluster::LocalCluster(LocalCluster&& other) noexcept
    : folder_(std::exchange(other.folder_, {})), address_(std::move(other.address_)) {}

LocalCluster::~LocalCluster() {
  if (folder_.empty()) return;
  (void)cluster(folder_, {"down"});
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace vmem::bench
