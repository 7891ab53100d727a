#include "runtime/cluster/directory_service.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <type_traits>
#include <utility>

#include "base/log.hpp"

namespace vmem::runtime {

using namespace cluster::directory;  // NOLINT(google-build-using-namespace): its messages

namespace {

std::string label(const cluster::NodeRecord& record, const std::string& name) {
  const auto found = record.labels.find(name);
  return found == record.labels.end() ? "" : found->second;
}

KnownNode known(NodeId id, const cluster::NodeRecord& record, const std::optional<cluster::DrainOrder>& drain) {
  return {.id = id,
          .daemon = record.lends.copies != 0,
          .without_copies = record.lends.copies == 0 && record.kind == "daemon",
          .draining = drain.has_value(),
          .forced = drain && drain->force,
          .rack = label(record, "rack"),
          .host = label(record, "host"),
          .free_bytes = record.lends.copies};
}

NodesView nodes_of(const ClusterView& view) {
  NodesView nodes{.as_of = view.as_of, .nodes = {known(view.self, view.own, view.drain)}};
  for (const ClusterNode& node : view.nodes) nodes.nodes.push_back(known(node.id, node.record, node.drain));
  std::ranges::sort(nodes.nodes, {}, &KnownNode::id);
  return nodes;
}

Serial serial_of(const sharing::SharedPage& page) { return Serial{static_cast<std::uint64_t>(page.serial)}; }

Error ended_error() {
  return {VMEM_ERROR_NOT_INITIALIZED, 0, "vmem ends in this process, and with it its part in the cluster"};
}

template <class Value>
Value error(Error why) {
  if constexpr (std::is_same_v<Value, DirectoryService::Published>)
    return {.done = false, .status = std::unexpected(std::move(why))};
  else
    return std::unexpected(std::move(why));
}

// The ticket of an event that ends what was asked for.
template <class Body>
std::optional<cluster::Ticket> ticket_of(const Body& body) {
  if constexpr (requires { body.ticket; }) return body.ticket;
  return std::nullopt;
}

}  // namespace

std::uint64_t system_unix_s() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

// Who waits gets a value, or an error if nobody sets one.
template <class Value>
class DirectoryService::Waiter {
 public:
  explicit Waiter(Done<Value> done) : done_(std::move(done)) {}
  Waiter(Waiter&& other) noexcept : done_(std::exchange(other.done_, {})) {}
  Waiter& operator=(Waiter&&) = delete;
  ~Waiter() {
    if (done_) set(error<Value>(ended_error()));
  }
  void set(Value value) { std::exchange(done_, {})(std::move(value)); }

 private:
  Done<Value> done_;
};

// Nodes without credentials are this user's on this machine.
std::string DirectoryService::tenant_of(const std::string& identity) {
  return identity.empty() ? "(this user)" : identity;
}

DirectoryService::DirectoryService(rdma::Node& node, rdma::Parcels& parcels, Config config)
    : node_(node), parcels_(parcels), config_(std::move(config)), paths_(node, config_.lenders) {}

Result<std::unique_ptr<DirectoryService>> DirectoryService::create(rdma::Node& node, rdma::Parcels& parcels,
                                                                   Config config) {
  std::unique_ptr<DirectoryService> service(new DirectoryService(node, parcels, std::move(config)));
  VMEM_TRY(service->open_directory());
  return service;
}

Status DirectoryService::open_directory() {
  VMEM_ASSIGN(registry_, config_.registry([this] { node_.wake(); }));
  DirectoryConfig times;
  // A program's mover drops cached pages without a word.
  times.keeps_copies = config_.copies != nullptr;
  directory_ =
      std::make_unique<Directory>(*registry_, node_.clock(),
                                  Directory::Setup{.config = times,
                                                   .random = config_.random,
                                                   .tenant = tenant_of(config_.tenant),
                                                   .fenced = [this] { return config_.fence->is_up(self_); },
                                                   .unix_s = config_.unix_s,
                                                   .no_path = [this](NodeId node) { return paths_.trouble(node); },
                                                   .takes_over = config_.takes_over});
  parcels_.receive(rdma::Parcels::Topic::directory,
                   [this](const rdma::Peer& from, rdma::ConstBytes bytes) { receive(from, bytes); });
  node_.add(*this);
  return {};
}

DirectoryService::~DirectoryService() {
  if (directory_) node_.remove(*this);
  inbox_.clear();
}

void DirectoryService::see(ClusterView view) {
  inbox_.post([this, view = std::move(view)] { seen(view); });
}

void DirectoryService::expelled() {
  inbox_.post([this] {
    self_ = {};
    directory_->expelled();
  });
}

std::uint64_t DirectoryService::left_us(std::uint64_t deadline_us) const {
  const std::uint64_t now_us = node_.clock().now_us();
  return deadline_us > now_us ? deadline_us - now_us : 0;
}

template <class Value>
void DirectoryService::call(Done<Value> done, std::uint64_t wait_us,
                            std::move_only_function<Ticket(std::uint64_t left_us)> begin,
                            std::move_only_function<Value(Event&)> take) {
  const std::uint64_t now_us = node_.clock().now_us();
  const std::uint64_t deadline_us = now_us + std::min(wait_us, UINT64_MAX - now_us);
  inbox_.post([this, deadline_us, begin = std::move(begin), take = std::move(take),
               waiter = Waiter<Value>(std::move(done))]() mutable {
    const Ticket ticket = begin(left_us(deadline_us));
    waiting_[ticket] = [take = std::move(take), waiter = std::move(waiter)](Event& event) mutable {
      waiter.set(take(event));
    };
  });
}

void DirectoryService::publish(Publication what, std::uint64_t wait_us, Done<Published> done) {
  call<Published>(
      std::move(done), wait_us,
      [this, what = std::move(what)](std::uint64_t left_us) { return directory_->publish(what, left_us); },
      [](Event& event) {
        PublishEnded& ended = std::get<PublishEnded>(event);
        if (ended.serial) return Published{.done = true, .status = {}};
        return Published{.done = ended.published, .status = std::unexpected(std::move(ended.serial).error())};
      });
}

void DirectoryService::open(const std::string& name, std::uint64_t wait_us, Done<Result<RegionRecord>> done) {
  call<Result<RegionRecord>>(
      std::move(done), wait_us, [this, name](std::uint64_t left_us) { return directory_->open(name, left_us); },
      [this](Event& event) -> Result<RegionRecord> {
        VMEM_ASSIGN(const Serial serial, std::get<OpenEnded>(event).serial);
        const Participant* const part = directory_->participant(serial);  // it may have ended since
        if (part == nullptr) return fail(VMEM_ERROR_LOST, "the region was closed by the cluster while it was opened");
        return part->region();
      });
}

void DirectoryService::close(Serial serial, std::uint64_t wait_us, Done<Result<Runs>> done) {
  call<Result<Runs>>(
      std::move(done), wait_us, [this, serial](std::uint64_t left_us) { return directory_->close(serial, left_us); },
      [](Event& event) -> Result<Runs> {
        CloseEnded& ended = std::get<CloseEnded>(event);
        VMEM_TRY(ended.status);
        return std::move(ended.lost);
      });
}

void DirectoryService::remove(const std::string& name, std::uint64_t wait_us, Done<Status> done) {
  call<Status>(
      std::move(done), wait_us, [this, name](std::uint64_t left_us) { return directory_->remove(name, left_us); },
      [](Event& event) { return std::get<RemoveEnded>(event).status; });
}

void DirectoryService::leave(std::uint64_t wait_us, Done<Status> done) {
  call<Status>(
      std::move(done), wait_us, [this](std::uint64_t left_us) { return directory_->leave(left_us); },
      [](Event& event) { return std::get<LeaveEnded>(event).status; });
}

// ---- the node's thread ----

void DirectoryService::seen(const ClusterView& view) {
  paths_.see(view);
  if (view.self != self_) {
    if (self_ != NodeId{}) directory_->expelled();
    self_ = view.self;
    directory_->enrolled(self_, view.record);
  }
  directory_->see(nodes_of(view));
}

void DirectoryService::quiesce() {
  parcels_.receive(rdma::Parcels::Topic::directory, {});
  paths_.close();
}

bool DirectoryService::step() {
  bool did = inbox_.run();
  did |= directory_->step();
  events_.clear();
  directory_->poll(events_);
  for (Event& event : events_) handle(event);
  send();
  return did;
}

void DirectoryService::receive(const rdma::Peer& from, rdma::ConstBytes bytes) {
  const NodeId node = paths_.of(from);
  if (node == NodeId{}) return;
  directory_->deliver({.node = node, .tenant = tenant_of(from.tenant)},
                      {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

// What cannot be sent now is sent again by its deadline: every message is repeated until answered.
void DirectoryService::send() {
  outgoing_.clear();
  directory_->take_messages(outgoing_);
  for (const Outgoing& message : outgoing_) {
    const rdma::PeerId peer = paths_.to(message.to);
    if (peer == rdma::PeerId{}) continue;
    const std::string bytes = write(message.message);
    (void)parcels_.send(peer, rdma::Parcels::Topic::directory, std::as_bytes(std::span(bytes)));
  }
}

void DirectoryService::handle(Event& event) {
  const std::optional<Ticket> ticket = std::visit([](const auto& body) { return ticket_of(body); }, event);
  if (ticket)
    if (auto ended = waiting_.extract(*ticket)) return ended.mapped()(event);
  std::visit([this](auto& body) { on(body); }, event);
}

void DirectoryService::on(Answered& event) {
  auto finding = finding_.extract(event.ticket);
  if (!finding) return;
  auto& [page, found] = finding.mapped();
  if (event.run.state == PageState::lost)
    return found(fail(VMEM_ERROR_LOST, fmt::format("no node has page {} of the published region '{}' any more",
                                                   page.page, name_of(event.serial))));
  const StoredRegion* const region = directory_->regions().find(event.serial);
  std::vector<NodeId>& nodes = event.run.nodes;
  const bool last = nodes.size() == 1 && region != nullptr && region->record.publisher != nodes.front();
  found(
      sharing::PageSources{.nodes = std::move(nodes), .fetch = static_cast<std::uint32_t>(event.fetch), .last = last});
}

void DirectoryService::on(WantEnded& event) {
  auto finding = finding_.extract(event.ticket);
  if (!finding) return;
  Found& found = finding.mapped().found;
  if (event.status) return found(fail(VMEM_ERROR_INTERNAL, "the directory said nothing of a page that was asked for"));
  found(std::unexpected(event.status.error()));
}

void DirectoryService::on(KeepWanted& event) {
  const Participant* const part = directory_->participant(event.serial);
  if (config_.copies == nullptr || part == nullptr) return directory_->kept(event, KeepAnswer::no);
  config_.copies->keep(event, part->region());
}

void DirectoryService::on(ReleaseAllowed& event) {
  if (config_.copies != nullptr) config_.copies->release(event.serial, event.pages);
}

void DirectoryService::on(PartEnded& event) {
  if (config_.copies != nullptr) config_.copies->ended(event.serial);
}

void DirectoryService::on(RegionRemoved& event) {
  VMEM_LOG_WARN("the published region '{}' was removed: pages that are not here cannot be read any more; close it",
                name_of(event.serial));
}

void DirectoryService::on(RangeFreed& event) {
  if (event.region.publisher == self_ && config_.range_freed)
    config_.range_freed(std::uint32_t(event.region.first_granule), std::uint32_t(event.region.granules));
}

void DirectoryService::on(PagesLost& event) {
  VMEM_LOG_WARN("no node has some of the published region '{}' any more; LOST: {}", name_of(event.serial),
                words_of(event.pages));
}

std::string DirectoryService::name_of(Serial serial) const {
  const StoredRegion* const region = directory_->regions().find(serial);
  return region == nullptr ? fmt::format("with serial {}", static_cast<std::uint64_t>(serial)) : region->record.name;
}

void DirectoryService::find(const sharing::SharedPage& page, std::uint64_t deadline_us, Found found) {
  const Ticket ticket = directory_->want(serial_of(page), {.first = page.page, .count = 1}, left_us(deadline_us));
  finding_.emplace(ticket, Finding{page, std::move(found)});
}

bool DirectoryService::landed(const sharing::SharedPage& page, std::uint32_t fetch) {
  return directory_->arrived(serial_of(page), page.page, Fetch{fetch});
}

void DirectoryService::missing(const sharing::SharedPage& page, NodeId node) {
  directory_->missing(serial_of(page), {{.first = page.page, .count = 1}}, node);
}

}  // namespace vmem::runtime
