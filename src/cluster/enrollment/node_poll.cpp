#include "cluster/enrollment/node_poll.hpp"

#include <utility>

#include "base/log.hpp"

namespace vmem::cluster {
namespace {

// Reads for pokes are at least this part of a period apart.
constexpr std::uint64_t kPokedShare = 20;

}  // namespace

void NodePoll::start() {
  on_ = true;
  sent_us_ = 0;
}

void NodePoll::stop() {
  on_ = false;
  reading_.reset();
  nodes_answer_.reset();
  drain_answer_.reset();
  nodes_.drop();
  drain_.drop();
}

void NodePoll::poke(Revision revision) {
  if (revision > seen_) poked_ = std::max(poked_, revision);
}

std::optional<NodesReading> NodePoll::take() { return std::exchange(reading_, std::nullopt); }

bool NodePoll::keep(RegistryCall& call, std::optional<Reply>& answer) {
  std::optional<Reply> reply = call.take();
  if (!reply) return false;
  answer = std::move(reply);
  return true;
}

void NodePoll::read_in() {
  const std::optional<Reply> nodes = std::exchange(nodes_answer_, std::nullopt);
  const std::optional<Reply> drain = std::exchange(drain_answer_, std::nullopt);
  const auto* const read_nodes = std::get_if<Read>(&nodes->what);
  const auto* const read_drain = std::get_if<Read>(&drain->what);
  if (read_nodes == nullptr || read_drain == nullptr) {
    const auto* const error = std::get_if<Error>(read_nodes == nullptr ? &nodes->what : &drain->what);
    if (error == nullptr || is_away(*error)) return;
    if (const auto outage = failures_.failed())
      VMEM_LOG_WARN("the cluster's nodes could not be read {} times in {} s: {}", outage->failures, outage->seconds,
                    error->message);
    return;
  }
  if (const auto outage = failures_.ended())
    VMEM_LOG_WARN("the cluster's nodes can be read again, after {} s", outage->seconds);
  if (nodes->revision < seen_) return;
  seen_ = nodes->revision;
  if (poked_ <= seen_) poked_ = {};
  NodesReading reading{
      .revision = seen_, .sent_us = sent_us_, .nodes = read_nodes->records, .draining = {}, .hbm_limits = {}};
  for (const Record& record : read_drain->records) read_order(record, reading);
  reading_ = std::move(reading);
}

void NodePoll::read_order(const Record& record, NodesReading& into) {
  if (const auto id = id_in_key(record.key, kDrainPrefix))
    into.draining.emplace(*id, parse_drain_order(record.key, record.value));
  const auto limited = id_in_hbm_limit_key(record.key);
  if (!limited) return;
  if (const auto limit = parse_hbm_limit(record.key, record.value)) {
    into.hbm_limits.emplace(*limited, *limit);
  } else if (const auto times = unread_.next(); times.logged) {
    VMEM_LOG_WARN("an order is not followed: {} ({} so far)", limit.error().message, times.count);
  }
}

bool NodePoll::take_replies() {
  bool moved = keep(nodes_, nodes_answer_);
  moved |= keep(drain_, drain_answer_);
  if (moved && nodes_answer_ && drain_answer_) read_in();
  return moved;
}

bool NodePoll::step(std::uint64_t now_us) {
  const bool moved = take_replies();
  if (now_us < due_us()) return moved;
  sent_us_ = now_us;
  poked_ = {};
  nodes_ = calls_.post(ReadPrefix{std::string(kNodesPrefix)});
  drain_ = calls_.post(ReadPrefix{std::string(kDrainPrefix)});
  return true;
}

std::uint64_t NodePoll::due_us() const {
  if (!on_ || nodes_.pending() || drain_.pending()) return UINT64_MAX;
  if (sent_us_ == 0) return 0;
  return sent_us_ + (poked_ == Revision{} ? config_.poll_us : config_.poll_us / kPokedShare);
}

}  // namespace vmem::cluster
