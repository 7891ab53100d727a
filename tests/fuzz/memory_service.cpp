// A node that lends memory and disk space, and authenticated peers that send any requests in any
// order. Loans stay within the budget, a fetched page equals the page that was put, and nothing
// remains of an ended lease.
#include "rdma/lending/memory_service/memory_service.hpp"

#include <map>
#include <set>
#include <vector>

#include "base/log.hpp"
#include "fuzz/input.hpp"

namespace vmem::rdma {
namespace {

using fuzz::Input;
using fuzz::require;
using pagetable::kGranuleBytes;

constexpr std::uint64_t kLentGranules = 3, kStagingGranules = 1, kDiskGranules = 3;
constexpr std::uint64_t kLentBytes = kLentGranules * kGranuleBytes;
constexpr std::uint64_t kNodes = 3;
constexpr int kMostActions = 48, kMostPuts = 8;  // a page takes milliseconds

bool overlap(ConstBytes a, ConstBytes b) { return a.data() < b.data() + b.size() && b.data() < a.data() + a.size(); }

// Writes the contents of a page at `version`.
void fill(Bytes page, std::uint64_t version) {
  std::ranges::fill(page, std::byte{});
  std::memcpy(page.data(), &version, sizeof(version));
}

// A disk that grants, refuses, completes and fails as the input says.
class Disk final : public tiers::Tier {
 public:
  tiers::Grant next_grant = tiers::Grant::granted;
  bool refuses = false;

  const tiers::TierInfo& info() const noexcept override { return info_; }
  tiers::TierUsage usage() const override { return {.budget_bytes = kDiskGranules * kGranuleBytes}; }
  void expect(std::uint64_t, std::uint64_t) override {}
  Result<tiers::SlotGrant> allocate(std::uint64_t page_bytes) override {
    if (refuses) return fail(VMEM_ERROR_INTERNAL, "the disk is dead");
    if (next_grant != tiers::Grant::granted) return tiers::SlotGrant{next_grant, 0};
    slots_[++last_slot_].resize(page_bytes);
    return tiers::SlotGrant{tiers::Grant::granted, last_slot_};
  }
  void release(tiers::SlotId slot) override {
    require(slots_.erase(slot) == 1, "a slot is released once");
    for (const tiers::Transfer& each : in_flight_) require(each.slot != slot, "a slot in use is not released");
  }
  Status submit(std::span<tiers::Transfer> transfers) override {
    if (refuses) return fail(VMEM_ERROR_INTERNAL, "the disk is dead");
    for (tiers::Transfer& each : transfers) {
      require(slots_.contains(each.slot) && slots_[each.slot].size() == each.bytes, "a page has the size of its slot");
      each.id = tiers::next_transfer_id();
      in_flight_.push_back(each);
    }
    return {};
  }
  Status poll(std::vector<tiers::Completion>& completions) override {
    completions.insert(completions.end(), completed_.begin(), completed_.end());
    completed_.clear();
    return {};
  }
  tiers::Finished finish() noexcept override { return tiers::Finished::all_ended; }

  void complete(tiers::Outcome outcome) {
    if (in_flight_.empty()) return;
    const tiers::Transfer& transfer = in_flight_.front();
    std::vector<std::byte>& slot = slots_.at(transfer.slot);
    if (transfer.direction == tiers::Direction::store) {
      std::copy_n(transfer.host, transfer.bytes, slot.begin());
    } else if (outcome == tiers::Outcome::done) {
      std::ranges::copy(slot, transfer.host);
    }
    completed_.push_back({.id = transfer.id, .outcome = outcome, .error = {}});
    in_flight_.erase(in_flight_.begin());
  }
  std::size_t slots() const { return slots_.size(); }

 private:
  const tiers::TierInfo info_{.name = "scripted"};
  std::map<tiers::SlotId, std::vector<std::byte>> slots_;
  tiers::SlotId last_slot_ = 0;
  std::vector<tiers::Transfer> in_flight_;
  std::vector<tiers::Completion> completed_;
};

// Feeds scripted events to the service and checks what it sends.
class ScriptedTransport final : public Transport {
 public:
  struct Leaving {
    SendId id{};
    PeerId peer{};
    ConstBytes page;
  };
  std::vector<Event> events;
  std::set<PeerId> closed;
  std::vector<Leaving> leaving;
  // By sequence, which a peer may reuse.
  std::multimap<std::pair<PeerId, std::uint64_t>, wire::PageAt> fetches;
  std::map<PeerId, std::uint64_t> leases;  // as the service named them
  bool refuses = false;

  const std::string& address() const noexcept override { return address_; }
  Result<std::unique_ptr<Slab>> register_slab(Bytes memory) override { return std::make_unique<Whole>(memory); }
  Result<PeerId> connect(const std::string&, std::uint64_t) override { return fail(VMEM_ERROR_UNSUPPORTED, "nobody"); }
  Status send(std::span<Send> sends) override {
    if (refuses) return fail(VMEM_ERROR_OUT_OF_MEMORY, "too many are in flight");
    for (Send& each : sends) {
      each.id = SendId{++last_send_};
      check(each);
    }
    return {};
  }
  void close(PeerId peer) override { closed.insert(peer); }
  void poll(std::vector<Event>& to) override { to.swap(events); }
  bool wait(std::uint64_t) override { return !events.empty(); }
  bool progress() override { return false; }
  void idle(std::uint64_t) override {}
  void wake() noexcept override {}

 private:
  struct Whole final : Slab {
    explicit Whole(Bytes all) : all_(all) {}
    Bytes memory() const noexcept override { return all_; }
    Bytes all_;
  };
  void check(const Send& send) {
    const auto parsed = wire::parse(send.header);
    require(parsed && wire::is_reply(parsed->header.kind), "a lender only answers");
    if (parsed->header.kind == wire::Kind::allocated) {
      const auto lent = wire::read_lent(parsed->body);
      require(lent && lent->bytes.memory <= kLentBytes && lent->bytes.disk <= kDiskGranules * kGranuleBytes,
              "no lease is larger than what there is");
      leases[send.peer] = lent->lease;
    }
    if (send.payload.empty()) return;
    const ConstBytes page = send.payload.front();
    const auto [first, last] = fetches.equal_range({send.peer, parsed->header.request.sequence});
    require(std::any_of(first, last, [&](const auto& each) { return each.second.page.matches(page); }),
            "a page that is fetched is the one that was put");
    leaving.push_back({send.id, send.peer, page});
  }
  const std::string address_ = "nowhere";
  std::uint64_t last_send_ = 0;
};

class Script {
 public:
  explicit Script(Input& input) : input_(input) {
    NodeSetup setup{
        .self = {NodeId{99}, Incarnation{1}}, .make_transport = {}, .clock = &clock_, .times = {}, .own_thread = false};
    setup.make_transport = [this](Receiver&) -> Result<std::unique_ptr<Transport>> {
      auto made = std::make_unique<ScriptedTransport>();
      made_ = made.get();
      return made;
    };
    node_ = *Node::create(setup);
    service_ = std::make_unique<MemoryService>(MemoryService::Config{
        .clock = &clock_, .memory = memory(), .staging_bytes = kStagingGranules * kGranuleBytes, .disk = &disk_});
    require(service_->start(*node_).has_value(), "a lender starts");
  }

  void run() {
    for (int i = 0; i < kMostActions && !input_.empty(); ++i) {
      act();
      if (input_.below(4) != 0) step();
    }
    end();
  }

 private:
  struct Peer {
    NodeIdentity node;
  };
  struct Landing {
    PeerId peer{};
    Claim claim;
    wire::PageAt at;
    bool good = false;
    std::vector<std::byte> header;
  };

  // Shared by all inputs: the next input's last check detects bytes that one left behind.
  static Bytes memory() {
    static std::vector<std::byte> all(kLentBytes + kStagingGranules * kGranuleBytes);
    return all;
  }

  // Returns memory that the lease may have, and may hold pages.
  void ask() {
    speaker_ = peer();
    wire::Ask ask{.bytes = {granules(), granules(), 0}, .lease = made_->leases[speaker_]};
    if (input_.below(16) == 0) ask.lease = input_.take<std::uint64_t>();
    for (std::uint64_t i = input_.below(3); i != 0; --i) {
      const Extent extent{input_.below(kLentBytes / kGranuleBytes + 1) * kGranuleBytes,
                          (1 + input_.below(3)) * kGranuleBytes};
      ask.returned.push_back(extent);
    }
    push(speaker_, Message{header_of(wire::Kind::allocate, wire::encode(ask)), {}, 0});
  }

  void act() {
    switch (input_.below(16)) {
      case 0:
        return connect();
      case 1:
        return leave(peer());
      case 2:
      case 3:
        return ask();
      case 4:
      case 5:
        return put();
      case 6:
        return land(true);
      case 7:
        return land(false);
      case 8:
      case 9:
        return fetch();
      case 10:
        return request(wire::Kind::release, wire::body_of(page_at()));
      case 11:
        return request(wire::Kind::end, wire::body_of(wire::End{1 + input_.below(kNodes), 1 + input_.below(2)}));
      case 12:
        return garble();
      case 13:
        return end_send(input_.flag());
      case 14:
        return change_disk();
      default:
        clock_.advance(std::uint64_t{1} << input_.below(27));
    }
  }

  PeerId peer() {
    if (peers_.empty()) connect();
    auto found = peers_.begin();
    std::advance(found, std::ptrdiff_t(input_.below(peers_.size())));
    return found->first;
  }
  void connect() {
    if (peers_.size() >= 2 * kNodes) return;
    const PeerId id{++last_peer_};
    Connected connected{.node = {NodeId{1 + input_.below(kNodes)}, Incarnation{1 + input_.below(2)}}};
    connected.identity = input_.below(4) == 0 ? "another" : "team";
    peers_[id] = {connected.node};
    push(id, std::move(connected));
  }
  // Ends the transfers of the connection first, as Transport requires.
  void leave(PeerId id) {
    for (auto each = landing_.begin(); each != landing_.end();) {
      if (each->peer != id) {
        ++each;
        continue;
      }
      push(id, ReceiveFailed{each->claim.token, {}});
      each = landing_.erase(each);
    }
    std::erase_if(made_->leaving, [&](const ScriptedTransport::Leaving& each) {
      if (each.peer == id) push(id, SendFailed{each.id, Reason::lost, {}});
      return each.peer == id;
    });
    push(id, Gone{Reason::lost, {}});
    peers_.erase(id);
  }
  template <class What>
  void push(PeerId id, What what) {
    Event& event = made_->events.emplace_back();
    event.peer = id;
    event.what.emplace<What>(std::move(what));
  }

  std::uint64_t granules() {
    const std::size_t count = input_.below(6);
    return count == 5 ? input_.take<std::uint64_t>() : count * kGranuleBytes;
  }
  wire::PageAt page_at() {
    wire::PageAt at{.lease = made_->leases[speaker_], .offset = input_.below(4) * kGranuleBytes};
    if (input_.flag()) at.offset += wire::first_offset(wire::Medium::disk);
    at.page.granule = std::uint32_t(at.offset / kGranuleBytes);
    at.page.version = input_.below(3);
    at.page.bytes = (1 + input_.below(2)) * kGranuleBytes;
    at.doubted = input_.below(2);
    switch (input_.below(16)) {
      case 0:
        at.lease = input_.take<std::uint64_t>();
        break;
      case 1:
        at.offset = input_.take<std::uint64_t>();
        break;
      case 2:
        at.page.bytes = input_.take<std::uint64_t>();
        break;
      default:
        break;
    }
    return at;
  }
  // The seal of the page that fill() writes.
  void seal(wire::PageAt& at) {
    static std::map<std::array<std::uint64_t, 4>, tiers::Checksum> known;
    if (at.page.bytes > 2 * kGranuleBytes || at.page.bytes < sizeof(std::uint64_t)) return;
    auto [found, is_new] = known.try_emplace({at.page.granule, at.page.version, at.page.bytes, at.page.tenant});
    if (is_new) {
      std::vector<std::byte> page(at.page.bytes);
      fill(page, at.page.version);
      found->second = tiers::seal(page, at.page.identity());
    }
    at.page.low = found->second.low;
    at.page.high = found->second.high;
  }

  std::vector<std::byte> header_of(wire::Kind kind, ConstBytes body) {
    const NodeIdentity node = peers_.at(speaker_).node;
    // Sequences may repeat or jump ahead.
    sequence_ += input_.below(4) == 0 ? input_.take<std::uint16_t>() : 1;
    last_sequence_ = input_.below(8) == 0 ? 1 + input_.take<std::uint8_t>() : sequence_;
    const wire::RequestId id{std::uint64_t(node.id), Epoch{std::uint64_t(node.incarnation)}, last_sequence_};
    return *wire::write({.kind = kind, .request = id}, body);
  }
  void request(wire::Kind kind, ConstBytes body) {
    speaker_ = peer();
    push(speaker_, Message{header_of(kind, body), {}, 0});
  }
  void fetch() {
    speaker_ = peer();
    wire::PageAt at = page_at();
    seal(at);
    Message message{header_of(wire::Kind::fetch, wire::body_of(at)), {}, 0};
    made_->fetches.emplace(std::pair(speaker_, last_sequence_), at);
    push(speaker_, std::move(message));
  }
  void garble() {
    speaker_ = peer();
    if (input_.flag()) return request(wire::Kind(2 + input_.below(12)), input_.bytes(80));
    const ConstBytes raw = input_.bytes(100);
    push(speaker_, Message{{raw.begin(), raw.end()}, {}, 0});
  }

  // The transport asks for the claim before the peer's next event.
  void put() {
    if (++puts_ > kMostPuts) return;
    speaker_ = peer();
    if (made_->closed.contains(speaker_)) return;
    step();  // makes the service know the peer
    if (!peers_.contains(speaker_)) return;
    Landing landing{.peer = speaker_, .claim = {}, .at = page_at(), .good = input_.below(4) != 0, .header = {}};
    seal(landing.at);
    landing.header = header_of(wire::Kind::put, wire::body_of(landing.at));
    const std::uint64_t payload = input_.below(8) == 0 ? input_.take<std::uint32_t>() : landing.at.page.bytes;
    const auto claim = node_->claim(speaker_, landing.header, payload);
    if (!claim) return;
    landing.claim = *claim;
    const ConstBytes to = claim->destination;
    require(to.size() == payload && to.data() >= memory().data() &&
                to.data() + to.size() <= memory().data() + memory().size(),
            "what is claimed is lent memory");
    for (const Landing& each : landing_) require(!overlap(to, each.claim.destination), "no memory is claimed twice");
    for (const auto& each : made_->leaving) require(!overlap(to, each.page), "what is sent is not overwritten");
    landing_.push_back(std::move(landing));
  }
  void land(bool arrives) {
    if (landing_.empty()) return;
    Landing landing = std::move(landing_.front());
    landing_.erase(landing_.begin());
    if (!arrives) return push(landing.peer, ReceiveFailed{landing.claim.token, {}});
    fill(landing.claim.destination, landing.good ? landing.at.page.version : 99);
    push(landing.peer, Message{std::move(landing.header), landing.claim.destination, landing.claim.token});
  }
  void end_send(bool sent) {
    if (made_->leaving.empty()) return;
    const auto leaving = made_->leaving.front();
    made_->leaving.erase(made_->leaving.begin());
    if (sent) return push(leaving.peer, Sent{leaving.id});
    push(leaving.peer, SendFailed{leaving.id, Reason::timeout, {}});
  }
  void change_disk() {
    switch (input_.below(5)) {
      case 0:
        disk_.next_grant = tiers::Grant(input_.below(3));
        return;
      case 1:
        disk_.refuses = !disk_.refuses;
        return;
      case 2:
        made_->refuses = !made_->refuses;
        return;
      case 3:
        return disk_.complete(tiers::Outcome(input_.below(3)));
      default:
        disk_.complete(tiers::Outcome::done);
    }
  }

  void step() {
    (void)node_->step();
    const ServiceStatistics now = service_->statistics();
    require(now.held.memory <= now.lent.memory && now.lent.memory <= kLentBytes, "held <= lent <= memory");
    require(now.held.disk <= now.lent.disk && now.lent.disk <= kDiskGranules * kGranuleBytes, "held <= lent <= disk");
    require(now.clients <= kNodes && now.pages <= kLentGranules + kDiskGranules, "pages and nodes are counted once");
    require(now.remembered <= kNodes, "nothing is kept of nodes that are not there");
  }

  // All peers leave and none returns.
  void end() {
    disk_.refuses = made_->refuses = false;
    disk_.next_grant = tiers::Grant::granted;
    while (!peers_.empty()) leave(peers_.begin()->first);
    for (int i = 0; i < 64; ++i) {
      step();
      disk_.complete(tiers::Outcome::done);
      while (!made_->leaving.empty()) end_send(true);
    }
    clock_.advance(61'000'000);
    for (int i = 0; i < 8; ++i) step();
    const ServiceStatistics now = service_->statistics();
    require(now.lent.memory == 0 && now.lent.disk == 0 && now.clients == 0, "what was lent comes back");
    require(now.held.memory == 0 && now.held.disk == 0 && now.pages == 0 && disk_.slots() == 0,
            "no page stays without its lease");
    const ConstBytes lent = ConstBytes(memory()).first(kLentBytes);
    require(puts_ == 0 || (lent.front() == std::byte{} && std::memcmp(&lent[0], &lent[1], lent.size() - 1) == 0),
            "memory is wiped after a lease");
    service_->stop();
  }

  Input& input_;
  ManualClock clock_;
  Disk disk_;
  ScriptedTransport* made_ = nullptr;  // the node's
  std::unique_ptr<Node> node_;
  std::unique_ptr<MemoryService> service_;
  std::map<PeerId, Peer> peers_;
  std::vector<Landing> landing_;
  PeerId speaker_{};
  std::uint64_t last_peer_ = 0, sequence_ = 1, last_sequence_ = 0;
  int puts_ = 0;
};

}  // namespace
}  // namespace vmem::rdma

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  vmem::log::set_level(vmem::log::Level::off);
  vmem::fuzz::Input input(data, size);
  vmem::rdma::Script(input).run();
  return 0;
}
