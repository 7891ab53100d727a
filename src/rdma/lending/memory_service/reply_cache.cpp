#include "rdma/lending/memory_service/reply_cache.hpp"

#include <algorithm>
#include <utility>

namespace vmem::rdma {

ReplyCache::Verdict ReplyCache::arrived(const wire::RequestId& request) {
  Client& client = clients_[request.client];
  if (request.epoch < client.epoch) return Verdict::stale;
  if (request.epoch > client.epoch) client = {.epoch = request.epoch, .newest = 0, .entries = {}};
  if (too_old(client, request.sequence)) return Verdict::stale;
  const auto [at, is_new] = client.entries.try_emplace(request.sequence);
  if (!is_new) return at->second.done ? Verdict::answered : Verdict::under_way;
  client.newest = std::max(client.newest, request.sequence);
  while (too_old(client, client.entries.begin()->first)) client.entries.erase(client.entries.begin());
  return Verdict::carry_out;
}

const ReplyCache::Entry* ReplyCache::find(const wire::RequestId& request) const {
  const auto client = clients_.find(request.client);
  if (client == clients_.end() || client->second.epoch != request.epoch) return nullptr;
  const auto entry = client->second.entries.find(request.sequence);
  return entry == client->second.entries.end() ? nullptr : &entry->second;
}

void ReplyCache::answered(const wire::RequestId& request, std::vector<std::byte> reply) {
  if (const Entry* entry = find(request); entry == nullptr || entry->done) return;
  clients_[request.client].entries[request.sequence] = {true, std::move(reply)};
}

void ReplyCache::abandoned(const wire::RequestId& request) {
  if (const Entry* entry = find(request); entry == nullptr || entry->done) return;
  clients_[request.client].entries.erase(request.sequence);
}

ConstBytes ReplyCache::reply(const wire::RequestId& request) const {
  const Entry* entry = find(request);
  return entry != nullptr && entry->done ? ConstBytes{entry->reply} : ConstBytes{};
}

void ReplyCache::forget(std::uint64_t client) { clients_.erase(client); }

}  // namespace vmem::rdma
