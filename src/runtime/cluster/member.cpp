#include "runtime/cluster/member.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <random>
#include <utility>

#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "base/process_id.hpp"
#include "base/sizes.hpp"
#include "cluster/registry/etcd/etcd_registry.hpp"
#include "pagetable/types.hpp"
#include "rdma/node/wire.hpp"
#include "runtime/cluster/abandoned_slices.hpp"

namespace vmem::runtime {
namespace {

constexpr std::uint64_t kMostLeaveUs = 2'000'000;
constexpr std::uint64_t kMostIdleUs = 1'000'000;
constexpr std::uint64_t kReclaimUs = 10'000'000;
// A small address space has smaller slices, so that several nodes get some.
constexpr std::uint64_t kMostSmallSlices = 16;
constexpr std::uint64_t kSliceBytes = std::uint64_t{64} << 30, kLeastSliceBytes = std::uint64_t{1} << 30;

std::uint64_t number(NodeId id) { return static_cast<std::uint64_t>(id); }

Error left_error() {
  return {VMEM_ERROR_NOT_INITIALIZED, 0, "this process leaves the cluster, and takes nothing of it any more"};
}

}  // namespace

std::string RegistryAccess::cluster() const {
  const auto parsed = cluster::parse_etcd_address(address);
  return parsed ? parsed->cluster : "";
}

Result<std::unique_ptr<cluster::Registry>> open_registry(const RegistryAccess& access, std::function<void()> on_ready) {
  VMEM_ASSIGN(cluster::EtcdAddress address, cluster::parse_etcd_address(access.address));
  cluster::EtcdConfig config{.address = std::move(address), .tls = {}, .on_ready = std::move(on_ready)};
  if (config.address.tls && !access.certificates.empty()) {
    config.tls = {.authorities = access.certificates + "/ca.crt",
                  .certificate = access.certificates + "/tls.crt",
                  .key = access.certificates + "/tls.key"};
  }
  VMEM_ASSIGN(auto registry, cluster::EtcdRegistry::create(std::move(config)));
  return registry;
}

cluster::Random system_random() {
  return [] {
    std::random_device source;
    return std::uint64_t{source()} << 32 | source();
  };
}

RegistryOpener opener_of(RegistryAccess access) {
  return [access = std::move(access)](std::function<void()> on_ready) {
    return open_registry(access, std::move(on_ready));
  };
}

cluster::ClusterParameters cluster_parameters(std::uint64_t base, std::uint64_t space_bytes) {
  return {.base = base,
          .space_bytes = space_bytes,
          .slice_bytes = std::clamp(std::bit_floor(space_bytes / kMostSmallSlices), kLeastSliceBytes, kSliceBytes),
          .granule_bytes = pagetable::kGranuleBytes,
          .page_rule = "1"};
}

// Without the kernel's id of this boot, nodes of this host cannot be told from others'.
cluster::NodeRecord this_host(std::string kind, Incarnation incarnation) {
  std::array<char, 256> host{};
  (void)::gethostname(host.data(), host.size() - 1);
  const std::optional<ProcessId> self = process_with(::getpid());
  return {.incarnation = incarnation,
          .addresses = {},
          .boot = this_boot(),
          .pids = pid_namespace(),
          .pid = static_cast<std::uint64_t>(::getpid()),
          .started = self ? self->started : 0,
          .kind = std::move(kind),
          .versions = {rdma::kProtocolVersion - 1, rdma::kProtocolVersion},
          .trust = {},
          .labels = {{"host", host.data()}},
          .lends = {},
          .token = {}};
}

ClusterView cluster_view(const cluster::Enrollment& enrollment, cluster::NodeRecord own) {
  const cluster::RegistryMembers& members = enrollment.members();
  ClusterView view{.as_of = members.as_of(),
                   .self = enrollment.id(),
                   .record = enrollment.record(),
                   .own = std::move(own),
                   .drain = members.drain(enrollment.id()),
                   .hbm_limit = members.hbm_limit(enrollment.id()),
                   .nodes = {}};
  for (const auto& [id, node] : members.nodes()) view.nodes.push_back({id, node.record, members.drain(id)});
  return view;
}

Result<std::unique_ptr<Member>> Member::join(Config config, std::uint64_t most_us) {
  std::unique_ptr<Member> member(new Member(std::move(config)));
  VMEM_ASSIGN(member->registry_, open_registry(member->config_.registry, [it = member.get()] { it->wake(); }));
  const auto times = cluster::EnrollmentConfig::of_lease(member->config_.lease_s);
  VMEM_TRY(times.check());
  member->enrollment_ =
      std::make_unique<cluster::Enrollment>(*member->registry_, member->clock_,
                                            cluster::Enrollment::Setup{.parameters = member->config_.parameters,
                                                                       .self = member->config_.record,
                                                                       .config = times,
                                                                       .random = system_random()});
  member->thread_ = std::thread([it = member.get()] { it->run(); });
  std::unique_lock lock(member->mutex_);
  const bool decided = member->changed_.wait_for(lock, std::chrono::microseconds(most_us),
                                                 [&] { return member->joined_ || member->refused_; });
  if (member->refused_) return std::unexpected(*member->refused_);
  if (decided) return member;
  return fail(VMEM_ERROR_TIMEOUT,
              fmt::format("the cluster was not joined within {} s: {}", most_us / 1'000'000,
                          member->trouble_ ? member->trouble_->message : "its registry did not answer"));
}

void Member::leave() {
  std::unique_lock lock(mutex_);
  leaving_ = woken_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return over_; });
}

Member::~Member() {
  if (thread_.joinable()) {
    leave();
    thread_.join();
  }
  config_.fence.set({}, 0);
  enrollment_.reset();
  registry_.reset();
}

// REQUIRES: mutex_ is held.
Error Member::over_error() const { return refused_ ? *refused_ : left_error(); }

NodeId Member::id() const {
  const std::lock_guard lock(mutex_);
  return id_;
}

Result<std::uint64_t> Member::take_serial(std::uint64_t most_us) {
  std::future<Result<std::uint64_t>> taken;
  {
    const std::lock_guard lock(mutex_);
    if (over_ || leaving_) return std::unexpected(over_error());
    taken = asked_serials_.emplace_back().promise.get_future();
  }
  wake();
  // The enrollment gives up by itself, too: this only may be sooner.
  constexpr std::uint64_t kLongestUs = 60'000'000;
  if (taken.wait_for(std::chrono::microseconds(std::min(most_us, kLongestUs))) == std::future_status::ready)
    return taken.get();
  return fail(VMEM_ERROR_TIMEOUT, fmt::format("the cluster's registry gave no number for a region within {}; is one of "
                                              "its servers up?",
                                              exact_duration_us(most_us)));
}

Result<std::vector<cluster::Slice>> Member::take_slices(std::uint32_t count) {
  auto taken = ask_for({.count = count});
  if (taken || taken.error().status != VMEM_ERROR_ADDRESS_SPACE) return taken;
  VMEM_TRY(reclaim());
  return ask_for({.count = count});
}

Result<std::vector<cluster::Slice>> Member::ask_for(Asked<std::vector<cluster::Slice>> asked) {
  std::future<Result<std::vector<cluster::Slice>>> taken = asked.promise.get_future();
  {
    const std::lock_guard lock(mutex_);
    if (over_ || leaving_) return std::unexpected(over_error());
    asked_slices_.push_back(std::move(asked));
  }
  wake();
  return taken.get();
}

// Frees what nodes have left behind. One that another node takes over first is none of this node's.
Status Member::reclaim() {
  VMEM_ASSIGN(const auto abandoned, clear_abandoned_slices(config_.registry, config_.parameters, kReclaimUs));
  for (const AbandonedSlice& each : abandoned) {
    const auto taken = ask_for({.slice = each.slice, .from = each.from});
    if (!taken) continue;
    const std::lock_guard lock(mutex_);
    held_.erase(each.slice);
    to_free_.push_back(each.slice);
  }
  return {};
}

Status Member::keep(cluster::Slice slice) {
  const std::lock_guard lock(mutex_);
  if (!held_.contains(slice))
    return fail(VMEM_ERROR_IN_USE,
                "this node was removed from the cluster meanwhile, and other nodes may use the addresses of what it "
                "allocated before: copy it to memory that is allocated now");
  kept_.insert(slice);
  return {};
}

bool Member::holds(cluster::Slice slice) const {
  const std::lock_guard lock(mutex_);
  return held_.contains(slice);
}

void Member::wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

// ---- the member's thread ----

void Member::run() {
  std::uint64_t leave_by_us = 0;
  std::vector<cluster::EnrollmentEvent> events;
  MemoryReserve reserve;
  while (true) {
    (void)reserve.refill();
    ask();
    if (config_.holdings) enrollment_->tell_holdings(config_.holdings());
    while (enrollment_->step()) {
    }
    config_.fence.set(enrollment_->id(), enrollment_->fence_at_us());
    events.clear();
    enrollment_->poll(events);
    for (cluster::EnrollmentEvent& event : events) take(event);
    tell_nodes();
    std::unique_lock lock(mutex_);
    trouble_ = enrollment_->trouble();
    say_trouble();
    if (leaving_ && leave_by_us == 0) {
      leave_by_us = clock_.now_us() + kMostLeaveUs;
      lock.unlock();
      enrollment_->leave(to_release());
      continue;
    }
    const std::uint64_t now = clock_.now_us();
    if (over_ || (leave_by_us != 0 && now >= leave_by_us)) {
      over_ = true;
      changed_.notify_all();
      lock.unlock();
      return refuse_asked();
    }
    const std::uint64_t due = std::min({enrollment_->next_due_us(), now + kMostIdleUs, leave_by_us - 1});
    changed_.wait_for(lock, std::chrono::microseconds(due > now ? due - now : 0), [&] { return woken_; });
    woken_ = false;
  }
}

void Member::take(cluster::EnrollmentEvent& event) {
  using namespace cluster;
  if (const auto* const enrolled = std::get_if<Enrolled>(&event)) {
    VMEM_LOG_INFO("this process is node {} of the cluster", number(enrolled->self));
    if (const auto outside = outside_.ended())
      VMEM_LOG_WARN("this process is a member of the cluster again, as node {}, after {} s", number(enrolled->self),
                    outside->seconds);
    const std::lock_guard lock(mutex_);
    id_ = enrolled->self;
  } else if (const auto* const expelled = std::get_if<Expelled>(&event)) {
    VMEM_LOG_WARN("this process is no longer node {} of the cluster, and enrolls again: {}", number(expelled->former),
                  expelled->why.message);
    config_.fence.set({}, 0);
    told_ = {};
    {
      const std::lock_guard lock(mutex_);
      id_ = {};
      held_.clear();
      kept_.clear();
    }
    config_.expelled(expelled->slices);
  } else if (auto* const serial = std::get_if<SerialTaken>(&event)) {
    serials_.extract(serial->ticket).mapped().set_value(std::move(serial->serial));
  } else if (auto* const slices = std::get_if<SlicesTaken>(&event)) {
    if (slices->slices) {
      const std::lock_guard lock(mutex_);
      held_.insert(slices->slices->begin(), slices->slices->end());
    }
    slices_.extract(slices->ticket).mapped().set_value(std::move(slices->slices));
  } else if (std::holds_alternative<Fenced>(event)) {
    VMEM_LOG_WARN("the cluster's registry has not answered for so long that this node must not act as a member");
  } else if (std::holds_alternative<FenceEnded>(event)) {
    VMEM_LOG_INFO("the cluster's registry answers again");
  } else if (auto* const refused = std::get_if<Refused>(&event)) {
    const std::lock_guard lock(mutex_);
    refused_ = std::move(refused->why);
    // Else join() returns it.
    if (joined_) VMEM_LOG_ERROR("{}; then start this process again", refused_->message);
    over_ = true;
    changed_.notify_all();
  } else if (auto* const left = std::get_if<Left>(&event)) {
    if (!left->status) VMEM_LOG_WARN("this node did not leave the cluster in order: {}", left->status.error().message);
    const std::lock_guard lock(mutex_);
    over_ = true;
  } else {
    nodes_changed_ = true;
  }
}

// Of the first enrollment join() tells what delays it. REQUIRES: mutex_ is held.
void Member::say_trouble() {
  if (!joined_ || !trouble_) return;
  if (const auto outside = outside_.failed())
    VMEM_LOG_WARN("this process is no member of the cluster any more, and could not enroll again so far ({} s): {}",
                  outside->seconds, trouble_->message);
}

void Member::ask() {
  std::vector<Asked<std::uint64_t>> serials;
  std::vector<Asked<std::vector<cluster::Slice>>> slices;
  std::vector<cluster::Slice> free;
  {
    const std::lock_guard lock(mutex_);
    serials.swap(asked_serials_);
    slices.swap(asked_slices_);
    free.swap(to_free_);
  }
  for (auto& each : serials) serials_.emplace(enrollment_->take_serial(), std::move(each.promise));
  for (const cluster::Slice slice : free) (void)enrollment_->release_slice(slice);
  for (auto& each : slices) {
    const bool over = each.from != NodeId{};
    const cluster::Ticket ticket =
        over ? enrollment_->take_over_slice(each.slice, each.from) : enrollment_->take_slices(each.count);
    slices_.emplace(ticket, std::move(each.promise));
  }
}

void Member::refuse_asked() {
  ask();
  const Error why = [&] {
    const std::lock_guard lock(mutex_);
    return over_error();
  }();
  for (auto& [ticket, promise] : serials_) promise.set_value(std::unexpected(why));
  for (auto& [ticket, promise] : slices_) promise.set_value(std::unexpected(why));
  serials_.clear();
  slices_.clear();
}

std::vector<cluster::Slice> Member::to_release() const {
  const std::lock_guard lock(mutex_);
  std::vector<cluster::Slice> slices;
  std::ranges::set_difference(enrollment_->slices(), kept_, std::back_inserter(slices));
  return slices;
}

// Enrollment ends with the first reading of the members.
void Member::tell_nodes() {
  if (enrollment_->stage() != cluster::Enrollment::Stage::enrolled) return;
  const cluster::RegistryMembers& members = enrollment_->members();
  if (!members.known() || (members.as_of() == told_ && !nodes_changed_)) return;
  const ClusterView view = cluster_view(*enrollment_, config_.record);
  const bool changed = nodes_changed_ || told_ == cluster::Revision{};
  nodes_changed_ = false;
  told_ = view.as_of;
  config_.seen(view, changed);
  const std::lock_guard lock(mutex_);
  joined_ = true;
  changed_.notify_all();
}

}  // namespace vmem::runtime
