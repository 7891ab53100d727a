#include "runtime/cluster/registry_client.hpp"

#include <algorithm>
#include <utility>

namespace vmem::runtime {
namespace {

std::unexpected<Error> too_late() { return fail(VMEM_ERROR_TIMEOUT, "the cluster's registry did not answer in time"); }

}  // namespace

Result<std::unique_ptr<RegistryClient>> RegistryClient::open(const RegistryAccess& access, std::uint64_t most_us) {
  return open(opener_of(access), most_us);
}

Result<std::unique_ptr<RegistryClient>> RegistryClient::open(const RegistryOpener& opener, std::uint64_t most_us) {
  std::unique_ptr<RegistryClient> client(new RegistryClient(most_us));
  VMEM_ASSIGN(client->registry_, opener([it = client.get()] { it->ready(); }));
  return client;
}

void RegistryClient::ready() {
  const std::lock_guard lock(mutex_);
  ready_ = true;
  changed_.notify_all();
}

bool RegistryClient::wait() {
  std::unique_lock lock(mutex_);
  const bool came = changed_.wait_until(lock, end_, [&] { return ready_; });
  ready_ = false;
  return came;
}

Result<cluster::Reply> RegistryClient::ask(cluster::RegistryRequest request) {
  if (std::chrono::steady_clock::now() >= end_) return too_late();
  const cluster::RequestId id = registry_->post(std::move(request));
  for (;;) {
    if (!wait()) return too_late();
    std::vector<cluster::Reply> replies;  // also to requests that were given up
    registry_->poll(replies);
    const auto reply = std::ranges::find(replies, id, &cluster::Reply::request);
    if (reply == replies.end()) continue;
    if (const auto* const error = std::get_if<Error>(&reply->what)) return std::unexpected(*error);
    return std::move(*reply);
  }
}

Result<std::vector<cluster::Record>> RegistryClient::read(const std::string& prefix) {
  VMEM_ASSIGN(cluster::Reply reply, ask(cluster::ReadPrefix{prefix}));
  return std::move(std::get<cluster::Read>(reply.what).records);
}

Result<bool> RegistryClient::commit(cluster::Commit commit) {
  VMEM_ASSIGN(const cluster::Reply reply, ask(std::move(commit)));
  return std::get<cluster::Committed>(reply.what).done;
}

}  // namespace vmem::runtime
