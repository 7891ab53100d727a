#include "cluster/simulator/simulated_registry.hpp"

#include <iterator>
#include <utility>

namespace vmem::cluster::simulator {

const std::map<std::string, Record>& SimulatedRegistry::records() {
  state_.expire();
  if (state_.revision() == read_) return records_;
  const Reply reply = apply(ReadPrefix{""});
  records_.clear();
  for (const Record& record : std::get<Read>(reply.what).records) records_.emplace(record.key, record);
  read_ = state_.revision();
  return records_;
}

RegistryLink::RegistryLink(SimulatedRegistry& registry, std::uint64_t seed, std::uint64_t timeout_us,
                           std::function<void()> wake)
    : registry_(registry), random_(seed), timeout_us_(timeout_us), client_(std::make_shared<Client>()) {
  client_->wake = std::move(wake);
}

void RegistryLink::Client::deliver(Reply reply) {
  if (!alive || waiting.erase(reply.request) == 0) return;
  replies.push_back(std::move(reply));
  wake();
}

std::uint64_t RegistryLink::delay_us(std::uint32_t late, std::uint64_t late_us) {
  return 1 + random_() % (chance(late) ? late_us : registry_.faults.usual_us);
}

void RegistryLink::fail_after(std::uint64_t wait_us, RequestId id, vmem_status status, std::string why) {
  registry_.queue().after(wait_us, [client = client_, id, error = Error{status, 0, std::move(why)}] {
    client->deliver({.request = id, .revision = {}, .what = error});
  });
}

// Each delay is drawn now, so that a run does not depend on the order of what follows.
void RegistryLink::carry(RequestId id, RegistryRequest request) {
  const RegistryFaults& faults = registry_.faults;
  const std::uint64_t there_us = delay_us(faults.requests_late, faults.late_us);
  // Replies later than the timeout are as good as lost.
  const std::uint64_t back_us = delay_us(faults.replies_late, timeout_us_);
  const bool lost = chance(faults.replies_lost);
  const auto arrive = [&registry = registry_, client = client_, id, back_us, lost, request = std::move(request)] {
    if (registry.faults.away) return;
    Reply reply = registry.state().apply(id, request);
    if (lost) return;
    registry.queue().after(back_us, [client, reply = std::move(reply)] { client->deliver(reply); });
  };
  registry_.queue().after(there_us, arrive);
}

RequestId RegistryLink::post(RegistryRequest request) {
  const RequestId id{++last_id_};
  client_->waiting.insert(id);
  const RegistryFaults& faults = registry_.faults;
  const bool gone = away || faults.away;
  if (gone && chance(faults.refused_away)) {
    fail_after(delay_us(0, 1), id, VMEM_ERROR_UNSUPPORTED, "connection refused");
    return id;
  }
  fail_after(timeout_us_, id, VMEM_ERROR_TIMEOUT, "no answer came");
  if (!gone && !chance(faults.requests_lost)) carry(id, std::move(request));
  return id;
}

void RegistryLink::poll(std::vector<Reply>& replies) {
  replies.insert(replies.end(), std::make_move_iterator(client_->replies.begin()),
                 std::make_move_iterator(client_->replies.end()));
  client_->replies.clear();
}

}  // namespace vmem::cluster::simulator
