// The directory of published regions at this node: joins cluster::directory::Directory, which is
// pure, to the node's connections, to the registry, and to the threads that publish and open.
//
// A connection to the registry of its own: a Directory takes all replies of its registry.
//
// Threads: the node's, for Service and PageFinder; any, for the calls that end in a callback; any
// but the node's, for those that wait.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "cluster/directory/directory.hpp"
#include "rdma/node/parcels.hpp"
#include "runtime/cluster/directory_calls.hpp"
#include "runtime/cluster/member.hpp"
#include "runtime/cluster/node_paths.hpp"
#include "sharing/page_finder.hpp"
#include "tiers/async/inbox.hpp"

namespace vmem::runtime {

std::uint64_t system_unix_s();

// Keeps copies for the homes of published regions. Thread: the node's.
class CopyKeeper {
 public:
  virtual ~CopyKeeper() = default;
  // Answers by DirectoryService::kept, once for each page.
  virtual void keep(const cluster::directory::KeepWanted& wanted, const cluster::directory::RegionRecord& region) = 0;
  // These need not be kept any more.
  virtual void release(cluster::directory::Serial serial, const cluster::directory::Runs& pages) = 0;
  // Nothing of the region is of use here any more.
  virtual void ended(cluster::directory::Serial serial) = 0;
};

class DirectoryService final : public rdma::Service, public sharing::PageFinder, public DirectoryCalls {
 public:
  struct Config {
    RegistryOpener registry;
    std::string tenant;            // of this node, as others see it
    CopyKeeper* copies = nullptr;  // null, as in programs: this node promises to keep nothing
    NodePaths::Lenders lenders = NodePaths::Lenders::nobody;
    const Fence* fence = nullptr;  // of this node's membership
    // No node has these granules of a region that this node published mapped any more.
    std::function<void(std::uint32_t first, std::uint32_t count)> range_freed;
    cluster::Random random = system_random();
    std::function<std::uint64_t()> unix_s = system_unix_s;  // for expiries
    bool takes_over = true;                                 // see Directory::Setup
  };
  // Adds itself to the node. All outlive this. Errors: those of open_registry.
  static Result<std::unique_ptr<DirectoryService>> create(rdma::Node& node, rdma::Parcels& parcels, Config config);
  ~DirectoryService() override;

  // What the directory calls the tenant that a node has proved.
  static std::string tenant_of(const std::string& identity);

  // The node's thread, for a CopyKeeper. drop: false, the page has to be kept.
  void kept(const cluster::directory::KeepWanted& wanted, cluster::directory::KeepAnswer answer) {
    directory_->kept(wanted, answer);
  }
  bool drop(Serial serial, std::uint32_t page) { return directory_->drop(serial, {.first = page, .count = 1}); }

  // Any thread.
  void see(ClusterView view);
  void expelled();

  using DirectoryCalls::close;
  using DirectoryCalls::leave;
  using DirectoryCalls::open;
  using DirectoryCalls::publish;
  using DirectoryCalls::remove;
  void publish(Publication what, std::uint64_t wait_us, Done<Published> done) override;
  void open(const std::string& name, std::uint64_t wait_us, Done<Result<RegionRecord>> done) override;
  void close(Serial serial, std::uint64_t wait_us, Done<Result<Runs>> done) override;
  void remove(const std::string& name, std::uint64_t wait_us, Done<Status> done) override;
  void leave(std::uint64_t wait_us, Done<Status> done) override;

  // The node's thread.
  const cluster::directory::Directory& directory() const { return *directory_; }
  NodeId self() const { return self_; }  // 0: no member, as far as this thread has heard

  std::span<const rdma::wire::Kind> kinds() const override { return {}; }
  bool step() override;
  void quiesce() override;
  bool quiesced() const override { return true; }

  void find(const sharing::SharedPage& page, std::uint64_t deadline_us, Found found) override;
  bool landed(const sharing::SharedPage& page, std::uint32_t fetch) override;
  void gone(const sharing::SharedPage& page) override {
    inbox_.post([this, page] { missing(page, self_); });
  }
  void missing(const sharing::SharedPage& page, NodeId node) override;
  rdma::PeerId connection(NodeId node) override { return paths_.to(node); }

 private:
  using Ticket = cluster::Ticket;
  using Event = cluster::directory::DirectoryEvent;
  using Ended = std::move_only_function<void(Event&)>;
  struct Finding {
    sharing::SharedPage page;
    Found found;
  };
  template <class Value>
  class Waiter;

  DirectoryService(rdma::Node& node, rdma::Parcels& parcels, Config config);
  Status open_directory();
  template <class Value>
  void call(Done<Value> done, std::uint64_t wait_us, std::move_only_function<Ticket(std::uint64_t left_us)> begin,
            std::move_only_function<Value(Event&)> take);
  std::uint64_t left_us(std::uint64_t deadline_us) const;
  void seen(const ClusterView& view);
  void receive(const rdma::Peer& from, rdma::ConstBytes bytes);
  void send();
  void handle(Event& event);
  void on(cluster::directory::Answered& event);
  void on(cluster::directory::WantEnded& event);
  void on(cluster::directory::KeepWanted& event);
  void on(cluster::directory::ReleaseAllowed& event);
  void on(cluster::directory::PartEnded& event);
  void on(cluster::directory::RegionRemoved& event);
  void on(cluster::directory::RangeFreed& event);
  void on(cluster::directory::PagesLost& event);
  template <class Other>
  void on(Other&) {}
  std::string name_of(Serial serial) const;

  rdma::Node& node_;
  rdma::Parcels& parcels_;
  const Config config_;
  tiers::Inbox inbox_{[this] { node_.wake(); }};
  NodePaths paths_;
  std::unique_ptr<cluster::Registry> registry_;
  std::unique_ptr<cluster::directory::Directory> directory_;
  NodeId self_{};
  std::map<Ticket, Ended> waiting_;
  std::map<Ticket, Finding> finding_;
  std::vector<cluster::directory::Outgoing> outgoing_;
  std::vector<Event> events_;
};

}  // namespace vmem::runtime
