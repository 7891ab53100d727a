#include "rdma/lending/remote_tier/lenders.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/counted.hpp"
#include "base/log.hpp"
#include "base/sizes.hpp"

namespace vmem::rdma {

using wire::Answer;
using wire::Kind;

namespace {

constexpr std::uint64_t kBeforeAskingAgainUs = 50'000;
constexpr std::uint64_t kBeforeFullAgainUs = 1'000'000;
constexpr std::size_t kMostNamed = 3;     // in a message
constexpr std::uint64_t kLookUs = 5'000;  // between checks for ended lenders

bool moved_page(const CallEnd& end) {
  const auto reply = wire::read_body<wire::Reply>(end.body);
  return end.answered && reply && reply->answer == Answer::done;
}

std::uint64_t number(NodeIdentity node) { return static_cast<std::uint64_t>(node.id); }

std::string full_words(const wire::Lent& lent) {
  std::string words = fmt::format("{} of {} that it lends are leased to {}", format_bytes(lent.leased_bytes),
                                  format_bytes(lent.lendable_bytes), counted(lent.nodes, "node", "nodes"));
  if (lent.holder == 0) return words;
  words += fmt::format(", {} of them to node {}, which is ", format_bytes(lent.holder_bytes), lent.holder);
  if (lent.holder_left_us == 0)
    return words + "connected: end that program, have it borrow less (--borrow), or have the daemon lend more";
  return words + fmt::format("gone, and has it for {} more if its end is not seen (the daemon's --grace)",
                             exact_duration_us((lent.holder_left_us + 999'999) / 1'000'000 * 1'000'000));
}

bool is_listed(const std::vector<NamedLender>& named, std::uint64_t name) {
  return std::ranges::find(named, name, &NamedLender::name) != named.end();
}

// If the same is asked for again, it takes nothing of what the answer has left: pages may be there
// by then.
void keep_in(wire::Ask& wanted, const wire::MediumBytes& leased) {
  for (const wire::Medium medium : wire::kMedia) wanted.bytes[medium] = std::max(wanted.bytes[medium], leased[medium]);
}

}  // namespace

Lenders::Lenders(const RemoteConfig& config, Parts parts) : config_(config), parts_(parts) {
  for (const std::string& address : config_.peers) begin({address}, {});
}

std::uint32_t Lenders::begin(std::vector<std::string> addresses, NodeIdentity expected) {
  Lender& lender = lenders_.emplace_back();
  lender.expected = expected;
  lender.index = static_cast<std::uint32_t>(lenders_.size() - 1);
  lender.address = addresses.front();
  lender.link = parts_.node.links().add(std::move(addresses), *this);
  return lender.index;
}

void Lenders::follow(const std::vector<NamedLender>& named) {
  // A daemon whose membership ended and that joined again has another name, and still its pages.
  for (const NamedLender& lender : named) {
    if (lender.node == NodeIdentity{} || followed_.contains(lender.name)) continue;
    const auto known = std::ranges::find_if(followed_, [&](const auto& each) {
      return !is_listed(named, each.first) && lenders_[each.second].identity == lender.node;
    });
    if (known == followed_.end()) continue;
    auto renamed = followed_.extract(known);
    renamed.key() = lender.name;
    followed_.insert(std::move(renamed));
  }
  for (auto each = followed_.begin(); each != followed_.end();) {
    const bool stays = is_listed(named, each->first) || keep_unlisted(each->second);
    if (!stays) remove(each->second, "it is no member of the cluster any more");
    each = stays ? std::next(each) : followed_.erase(each);
  }
  named_ = named;
  for (const NamedLender& lender : named) {
    const auto known = followed_.find(lender.name);
    if (known != followed_.end()) {
      set_drain(lenders_[known->second], lender);
    } else if (!leaving_ && !closed_ && !lender.addresses.empty() && !lender.drains) {
      (void)parts_.placer.add_node(lender.addresses.front(), lender.domain);
      parts_.contacts.add(lender.addresses.front());
      followed_.emplace(lender.name, begin(lender.addresses, lender.node));
    }
  }
}

// A lender that is listed no more may have lost no more than its membership. What it has is there
// as long as it answers; meanwhile it gets nothing, and its pages move to others.
bool Lenders::keep_unlisted(std::uint32_t node) {
  Lender& lender = lenders_[node];
  if (lender.state == Lender::State::returning) return true;
  if (lender.lease == 0 || !is_ready(node)) return false;
  if (std::exchange(lender.unlisted, true)) return true;
  VMEM_LOG_WARN("node {} at {} is no member of the cluster any more, but answers: its pages move to other nodes",
                number(lender.identity), lender.address);
  lender.draining = true;
  lender.drain_rate = config_.repair_rate;
  parts_.placer.set_draining(node, true);
  return true;
}

void Lenders::set_drain(Lender& lender, const NamedLender& named) {
  if (std::exchange(lender.unlisted, false))
    VMEM_LOG_INFO("node {} at {} is a member of the cluster again, as node {}", number(lender.identity), lender.address,
                  named.name);
  if (named.drains != lender.draining)
    VMEM_LOG_INFO("node {} at {} {}", named.name, lender.address,
                  named.drains ? "drains: its pages move to other nodes" : "drains no more");
  lender.draining = named.drains;
  lender.drain_rate = named.drain_rate != 0 ? named.drain_rate : config_.repair_rate;
  // What is being returned is no room.
  parts_.placer.set_draining(lender.index, named.drains || lender.state == Lender::State::returning);
}

void Lenders::remove(std::uint32_t node, std::string why) {
  Lender& lender = lenders_[node];
  if (std::exchange(lender.state, Lender::State::removed) == Lender::State::removed) return;
  lender.why = std::move(why);
  if (lender.lease != 0) lose_lease(lender, lender.why);
  lender.resizing = false;
  lender.ask_us = 0;
  parts_.placer.drop(node);
  dead_.forget(lender.identity.id);
  parts_.node.links().remove(lender.link);
}

Lenders::Lender& Lenders::of(LinkId link) { return *std::ranges::find(lenders_, link, &Lender::link); }

// ---- requests ----

bool Lenders::send(std::uint32_t node, Call call, Calls::Then then) {
  Lender& lender = lenders_[node];
  call.peer = parts_.node.links().peer(lender.link);
  call.owner = &parts_.owner;
  call.deadline_us = now_us() + config_.request_us;
  const Status sent = parts_.node.calls().begin(call, std::move(then));
  if (!sent) not_sent(lender, call.kind, sent.error());
  return sent.has_value();
}

PageCallId Lenders::move(std::uint32_t node, Call call, std::uint64_t give_up_us, Calls::Then then) {
  call.peer = parts_.node.links().peer(lenders_[node].link);
  call.owner = &parts_.owner;
  const PageCall page{.call = call, .request_us = config_.request_us, .give_up_us = give_up_us, .moved = moved_page};
  return parts_.node.page_calls().begin(page, std::move(then));
}

std::uint64_t Lenders::loading_bytes(std::uint32_t node) const {
  return parts_.node.page_calls().bytes_from(parts_.node.links().peer(lenders_[node].link));
}

void Lenders::note_busy() {
  for (Lender& lender : lenders_) {
    const bool busy = parts_.node.page_calls().waits_to(parts_.node.links().peer(lender.link));
    if (std::exchange(lender.busy, busy) != busy) parts_.placer.set_busy(lender.index, busy);
  }
}

void Lenders::not_sent(const Lender& lender, Kind kind, const Error& error) {
  if (const auto times = unsent_.next(); times.logged)
    VMEM_LOG_WARN("a {} was not sent to {}: {} ({} so far)", wire::kind_name(kind), lender.address, error.message,
                  times.count);
}

void Lenders::ask_again() {
  for (Lender& lender : lenders_) {
    const bool asks = lender.state == Lender::State::asking || lender.resizing;
    if (asks && lender.ask_us != 0 && now_us() >= lender.ask_us) ask(lender);
  }
}

void Lenders::ask(Lender& lender) {
  lender.wanted.lease = lender.lease;
  const auto body = wire::encode(lender.wanted, lender.version);
  const auto [least, most] = wire::lent_bytes(lender.version);
  const std::uint32_t node = lender.index;
  lender.ask_us = now_us() + kBeforeAskingAgainUs;
  const bool sent = send(node, {.kind = Kind::allocate, .body = body, .reply_bytes = {least, most}},
                         [this, node](const CallEnd& end) {
                           if (end.answered) lent(lenders_[node], wire::read_lent(end.body, lenders_[node].version));
                         });
  if (!sent) return;
  lender.ask_us = 0;
  lender.wanted.returned.clear();
}

// ---- connections ----

Status Lenders::up(LinkId link, const Connected& connected) {
  if (leaving_) return fail(VMEM_ERROR_UNSUPPORTED, "this node leaves");
  Lender& lender = of(link);
  const std::string& at = lender.address;
  if (const auto allowed = config_.heard ? config_.heard(at, connected.node) : Status{}; !allowed) {
    if (const auto times = unused_.next(); times.logged)
      VMEM_LOG_WARN("the node at {} is not used: {} ({} such refusals)", at, allowed.error().message, times.count);
    return allowed;
  }
  if (lender.identity != connected.node) {
    const bool same_node = lender.identity.id == connected.node.id;
    if (lender.lease != 0)
      lose_lease(lender,
                 same_node ? "it was started anew, without what it held" : "another node answers at its address");
    dead_.forget(lender.identity.id);
  }
  // What that process keeps for this one is its own member's, and this link would displace that's.
  if (lender.expected != NodeIdentity{} && lender.expected != connected.node) {
    lender.superseded = true;
    return fail(VMEM_ERROR_UNSUPPORTED,
                fmt::format("another process than that of node {} answers at its address", number(lender.expected)));
  }
  lender.identity = connected.node;
  dead_.watch(connected.node, connected.process);
  lender.path = connected.path;
  lender.version = connected.version;
  lender.state = Lender::State::asking;
  // An earlier version's lease has its size for ever.
  const std::uint64_t all = config_.borrow_bytes;
  const bool by_need = config_.by_need && lender.version >= wire::kResizableVersion;
  lender.wanted.bytes =
      by_need ? parts_.placer.room(lender.index).leased : wire::MediumBytes{.memory = all, .disk = all, .hbm = all};
  lender.obstacle = Obstacle::none;
  ask(lender);
  return {};
}

void Lenders::down(LinkId link, const LinkDown& down) {
  Lender& lender = of(link);
  const std::uint32_t node = lender.index;
  lender.why = down.why;
  lender.obstacle = obstacle_of(down.native, std::exchange(lender.obstacle, Obstacle::none));
  if (lender.state == Lender::State::ready) {
    if (const auto times = broken_.next(); times.logged)
      VMEM_LOG_WARN("the connection to node {} at {} is gone: {} ({} so far)", number(lender.identity), lender.address,
                    lender.why, times.count);
    parts_.placer.set_away(node);
  }
  const bool known = config_.missed && lender.identity.id != NodeId{};
  if (down.reason == Reason::timeout && known) config_.missed(lender.identity.id);
  lender.state = Lender::State::away;
  lender.resizing = false;  // its next lease, or the same one, says what it has
  lender.wanted.returned.clear();
  parts_.contacts.failed(node, lender.why, lender.obstacle);
  if (leaving_) return parts_.node.links().remove(link);
  if (!lender.superseded && !lender.unlisted) return;
  remove(node, lender.why);
  if (lender.unlisted) std::erase_if(followed_, [&](const auto& each) { return each.second == node; });
}

// ---- leases ----

void Lenders::lent(Lender& lender, const std::optional<wire::Lent>& lent) {
  if (!lent) return parts_.node.links().close(lender.link, "its answer about a lease is malformed");
  if (lender.state != Lender::State::asking && !lender.resizing) return;
  // It lapsed, or the lender has ended it.
  const bool dropped = lender.lease != 0 && lent->lease != lender.lease;
  if (dropped) lose_lease(lender, "it dropped what it held for this node");
  if (lender.resizing) return resized(lender, *lent);
  if (dropped && lent->answer == Answer::unknown) return ask(lender);
  const bool again = lent->answer == Answer::again;  // memory is being wiped
  if (again) lender.ask_us = now_us() + kBeforeAskingAgainUs;
  if (again && lent->lease == 0) return;
  if (again || lent->answer == Answer::done) {
    if (lent->lease == 0) return parts_.node.links().close(lender.link, "it granted a lease without an id");
    take_lease(lender, *lent);
    lender.resizing = again && lender.state == Lender::State::ready;
    return;
  }
  // The connection to a node that has no room stays: other services of this node may use it.
  const bool full = lent->answer == Answer::full;
  lender.why = full ? full_words(*lent) : std::string(wire::answer_words(lent->answer));
  lender.obstacle = Obstacle::full;
  if (!full) return parts_.node.links().close(lender.link, lender.why, kBeforeFullAgainUs);
  lender.ask_us = now_us() + kBeforeFullAgainUs;
  parts_.contacts.failed(lender.index, lender.why, lender.obstacle);
}

void Lenders::take_lease(Lender& lender, const wire::Lent& lent) {
  lender.lease = lent.lease;
  if (!parts_.placer.set_room(lender.index, lent)) return contradicted(lender);
  keep_in(lender.wanted, parts_.placer.room(lender.index).leased);
  lender.full = full_words(lent);
  lender.state = Lender::State::ready;
  lender.why.clear();
  if (std::exchange(lender.was_ready, true)) {
    parts_.counters.add(&RemoteStatistics::reconnects);
    if (const auto times = back_.next(); times.logged)
      VMEM_LOG_INFO("node {} at {} is back, by {} ({} so far)", number(lender.identity), lender.address, lender.path,
                    times.count);
  }
  parts_.contacts.reached(lender.index, lender.path);
}

// Memory of a lease is its borrower's until it returns it.
void Lenders::contradicted(Lender& lender) {
  const std::string why = "it took back memory that this node had not returned";
  lose_lease(lender, why);
  parts_.node.links().close(lender.link, why);
}

bool Lenders::is_resizable(std::uint32_t node) const {
  return is_ready(node) && lenders_[node].version >= wire::kResizableVersion;
}

bool Lenders::resize(std::uint32_t node, const wire::MediumBytes& wanted, const std::function<bool()>& surplus) {
  const wire::MediumBytes before = parts_.placer.room(node).leased;
  CopyPlacer::GivenUp given = parts_.placer.give_up(node, wanted, surplus);
  wire::MediumBytes bytes;
  for (const wire::Medium medium : wire::kMedia) bytes[medium] = std::max(wanted[medium], given.left[medium]);
  if (bytes == before && given.memory.empty()) return false;
  ask_for(node, {bytes, std::move(given.memory)});
  return true;
}

void Lenders::ask_for(std::uint32_t node, wire::Ask wanted) {
  lenders_[node].wanted = std::move(wanted);
  lenders_[node].resizing = true;
  ask(lenders_[node]);
}

void Lenders::resized(Lender& lender, const wire::Lent& lent) {
  if (lender.lease == 0) return parts_.node.links().close(lender.link, "it has ended its lease");
  if (!parts_.placer.set_room(lender.index, lent)) return contradicted(lender);
  keep_in(lender.wanted, parts_.placer.room(lender.index).leased);
  lender.full = full_words(lent);
  lender.resizing = lent.answer == Answer::again;
  if (lender.resizing) lender.ask_us = now_us() + kBeforeAskingAgainUs;
}

std::string Lenders::shortage() const {
  std::string words;
  std::size_t named = 0;
  for (const Lender& lender : lenders_) {
    if (lender.state != Lender::State::ready || ++named > kMostNamed) continue;
    words += fmt::format("{}{}: {}", words.empty() ? "" : "; ", lender.address, lender.full);
  }
  return named > kMostNamed ? fmt::format("{}; and {} more nodes", words, named - kMostNamed) : words;
}

// Pages are still fetched from a failed disk as long as it can be read, and from HBM that the owner
// wants back until they have moved.
void Lenders::revised(PeerId peer, const wire::Lent& lent) {
  const auto found = std::ranges::find_if(
      lenders_, [&](const Lender& lender) { return parts_.node.links().peer(lender.link) == peer; });
  if (found == lenders_.end() || found->state != Lender::State::ready) return;
  if (found->lease == 0 || found->lease != lent.lease) return;
  wire::MediumBytes bytes = lent.bytes;
  // It may have been sent before what this node has returned meanwhile; the answer says it again.
  const wire::MediumBytes had = parts_.placer.room(found->index).usable;
  for (const wire::Medium medium : wire::kMedia)
    if (found->resizing) bytes[medium] = std::min(bytes[medium], had[medium]);
  const wire::MediumBytes before = parts_.placer.revise(found->index, bytes);
  const wire::MediumBytes now = parts_.placer.room(found->index).usable;
  for (const wire::Medium medium : wire::kMedia) {
    if (before[medium] == now[medium]) continue;
    const auto times = less_.next();
    if (!times.logged) continue;
    if (medium == wire::Medium::disk && now[medium] < before[medium]) {
      VMEM_LOG_WARN("a disk of node {} at {} failed: of {} there, {} are left ({} changes of leases)",
                    number(found->identity), found->address, format_bytes(before[medium]), format_bytes(now[medium]),
                    times.count);
    } else {
      VMEM_LOG_INFO("node {} at {} lends {} of {} now, before {} ({} changes of leases)", number(found->identity),
                    found->address, format_bytes(now[medium]), wire::medium_words(medium), format_bytes(before[medium]),
                    times.count);
    }
  }
}

// Invalidates the copies on the node.
void Lenders::lose_lease(Lender& lender, const std::string& why) {
  const StoredPages::Loss loss = parts_.pages.lose(lender.index, parts_.placer);
  parts_.placer.drop(lender.index);
  lender.lease = 0;
  if (loss.copies == 0) return;
  parts_.counters.add(&RemoteStatistics::copies_lost, loss.copies);
  if (const auto times = lost_.next(); times.logged)
    VMEM_LOG_ERROR("node {} at {} is lost ({}), with {} copies of pages, {} of them the last ({} such losses)",
                   number(lender.identity), lender.address, why, loss.copies, loss.last, times.count);
}

// A place ends with its room, and a room with the tier.
void Lenders::release(const CopyPlace& copy) {
  const Lender& lender = lenders_[copy.node];
  if (leaving_ || !parts_.placer.is_there(copy) || !is_ready(copy.node)) return;
  wire::PageAt at{.lease = copy.lease, .offset = copy.offset};
  at.page.version = 1;  // any version but 0, which means the lease
  const Call release{.peer = parts_.node.links().peer(lender.link),
                     .kind = Kind::release,
                     .body = wire::body_of(at),
                     .deadline_us = now_us() + config_.request_us};
  if (const Status sent = parts_.node.calls().tell(release); !sent) not_sent(lender, Kind::release, sent.error());
}

bool Lenders::return_lease(const Lender& lender, Calls::Then then) {
  const wire::PageAt all{.lease = lender.lease};
  return send(lender.index, {.kind = Kind::release, .body = wire::body_of(all)}, std::move(then));
}

// A return that is on its way already is waited for, too.
void Lenders::return_leases() {
  if (std::exchange(leaving_, true)) return;
  std::uint32_t sent = 0;
  for (const Lender& lender : lenders_) {
    const auto ended = [this](const CallEnd&) { parts_.returns.ended(); };
    const bool returning = lender.state == Lender::State::returning;
    if (returning || (lender.state == Lender::State::ready && return_lease(lender, ended))) ++sent;
  }
  parts_.returns.sent(sent);
}

// ---- drains ----

// A lender without a lease has nothing of this tier. While a lender is away, its lease cannot be
// returned.
bool Lenders::leave_drained() {
  bool did = false;
  for (std::size_t node = 0; node < lenders_.size(); ++node) {
    const Lender& lender = lenders_[node];
    const bool over = lender.state == Lender::State::removed || lender.state == Lender::State::returning || leaving_;
    if (!lender.draining || over || !parts_.placer.room(lender.index).empty) continue;
    if (lender.lease != 0 && !is_ready(lender.index)) continue;
    did = true;
    lender.lease == 0 ? drained(lender.index) : return_drained(lenders_[node]);
  }
  return did;
}

void Lenders::return_drained(Lender& lender) {
  const auto ended = [this, node = lender.index](const CallEnd&) {
    if (leaving_) parts_.returns.ended();
    drained(node);
  };
  if (!return_lease(lender, ended)) return;
  lender.state = Lender::State::returning;
  lender.resizing = false;
  parts_.placer.set_away(lender.index);
}

void Lenders::drained(std::uint32_t node) {
  Lender& lender = lenders_[node];
  if (lender.state == Lender::State::removed) return;
  VMEM_LOG_INFO("node {} at {} is drained of this program's pages", number(lender.identity), lender.address);
  lender.lease = 0;
  parts_.contacts.failed(node, "it is being drained", Obstacle::none);
  remove(node, "it is being drained");
  std::erase_if(followed_, [&](const auto& each) { return each.second == node; });
  follow(std::vector(named_));  // it may be used again meanwhile
}

// ---- ends ----

// Closes the connection too: a forked child of the lender may hold it open. But a node that is away
// may be connecting, to another process.
bool Lenders::find_dead() {
  if (now_us() < look_us_) return false;
  look_us_ = now_us() + kLookUs;
  const auto found = dead_.find();
  for (Lender& lender : lenders_) {
    if (std::ranges::find(found, lender.identity) == found.end()) continue;
    lender.why = "its process has ended";
    if (lender.lease != 0) lose_lease(lender, lender.why);
    if (lender.state != Lender::State::away) parts_.node.links().close(lender.link, lender.why);
  }
  return !found.empty();
}

void Lenders::close_all() {
  if (std::exchange(closed_, true)) return;
  for (const Lender& lender : lenders_) parts_.node.links().remove(lender.link);
}

bool Lenders::all_closed() const {
  return std::ranges::all_of(lenders_,
                             [&](const Lender& lender) { return parts_.node.links().peer(lender.link) == PeerId{}; });
}

bool Lenders::is_ready(std::uint32_t node) const {
  return lenders_[node].state == Lender::State::ready && parts_.node.links().is_up(lenders_[node].link);
}

}  // namespace vmem::rdma
