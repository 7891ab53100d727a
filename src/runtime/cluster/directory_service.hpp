// The directory of published regions at this node: joins cluster::directory::Directory, which is
// pure, to the node's connections, to the registry, and to the threads that publish and open.
//
// A connection to the registry of its own: a Directory takes all replies of its registry.
//
// Threads: the node's, for Service and PageFinder; any but the node's, for the calls that wait.
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
#include "runtime/cluster/member.hpp"
#include "runtime/cluster/node_paths.hpp"
#include "sharing/page_finder.hpp"
#include "tiers/async/inbox.hpp"

namespace vmem::runtime {

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

class DirectoryService final : public rdma::Service, public sharing::PageFinder {
 public:
  using Serial = cluster::directory::Serial;
  struct Config {
    RegistryAccess registry;
    std::string tenant;            // of this node, as others see it
    CopyKeeper* copies = nullptr;  // null, as in programs: this node promises to keep nothing
    NodePaths::Lenders lenders = NodePaths::Lenders::nobody;
    const Fence* fence = nullptr;  // of this node's membership
    // No node has these granules of a region that this node published mapped any more.
    std::function<void(std::uint32_t first, std::uint32_t count)> range_freed;
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

  // Each waits for at most wait_us, and a little. Errors: those of the directory; TIMEOUT.
  struct Published {
    bool done = false;  // nodes may have it open, also on an error
    Status status;
  };
  Published publish(cluster::directory::Directory::Publication what, std::uint64_t wait_us);
  Result<cluster::directory::RegionRecord> open(const std::string& name, std::uint64_t wait_us);
  // The pages of which nobody else is known to have a copy.
  Result<cluster::directory::Runs> close(Serial serial, std::uint64_t wait_us);
  // Of the version that has the name at present.
  Status remove(const std::string& name, std::uint64_t wait_us);
  // Closes all regions here, and has other nodes take over what this one is home of.
  Status leave(std::uint64_t wait_us);

  std::span<const rdma::wire::Kind> kinds() const override { return {}; }
  bool step() override;
  void quiesce() override;
  bool quiesced() const override { return true; }

  void find(const sharing::SharedPage& page, std::uint64_t deadline_us, Found found) override;
  void landed(const sharing::SharedPage& page) override;
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
  Status call_for_status(std::move_only_function<Ticket()> begin, std::move_only_function<Status(Event&)> take);
  template <class Value>
  Result<Value> call(std::move_only_function<Ticket()> begin, std::move_only_function<Result<Value>(Event&)> take);
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
  std::map<sharing::SharedPage, cluster::directory::Fetch> fetching_;
  std::vector<cluster::directory::Outgoing> outgoing_;
  std::vector<Event> events_;
};

}  // namespace vmem::runtime
