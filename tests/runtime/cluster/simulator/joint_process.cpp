#include "runtime/cluster/simulator/joint_process.hpp"

#include <fmt/format.h>

#include <utility>

namespace vmem::runtime::simulator {

JointProcess::JointProcess(const Setup& setup) : random_(setup.seed), clock_(setup.clock), contents_(setup.contents) {
  make_node(setup);
  if (setup.daemon) {
    shelf_ = std::make_unique<PageShelf>(*node_, PageShelf::Config{.bytes = kCopiesBytes});
  } else {
    pages_ = std::make_unique<ProgramPages>(ProgramPages::Setup{.clock = clock_,
                                                                .contents = setup.contents,
                                                                .patience_us = setup.pages.patience_us,
                                                                .seed = random_(),
                                                                .read_lost = setup.pages.read_lost});
  }
  sharing::PageHolder& pages = shelf_ ? static_cast<sharing::PageHolder&>(*shelf_) : *pages_;
  lent_ = std::make_unique<UnreliablePages>(pages, setup.memory_faults, random_());
  make_joint(setup);
  if (shelf_) shelf_->begin(joint_->directory(), joint_->tier());
  if (pages_) pages_->begin(joint_->directory(), joint_->tier());
  joint_->serve(*lent_);
  node_->start();
}

void JointProcess::make_node(const Setup& setup) {
  rdma::NodeSetup node{.self = setup.self, .make_transport = {}, .clock = &clock_, .times = {}, .own_thread = false};
  node.make_transport = [&](rdma::Receiver& receiver) -> Result<std::unique_ptr<rdma::Transport>> {
    auto faulty =
        std::make_unique<rdma::FaultyTransport>(setup.fabric.node(setup.self, receiver, clock_), clock_, random_());
    faulty_ = faulty.get();
    return faulty;
  };
  node_ = *rdma::Node::create(std::move(node));
}

void JointProcess::make_joint(const Setup& setup) {
  JointRegions::Config config;
  config.directory.registry = [&](std::function<void()> on_ready) -> Result<std::unique_ptr<cluster::Registry>> {
    auto link = std::make_unique<cluster::simulator::RegistryLink>(setup.registry, random_(), setup.registry_timeout_us,
                                                                   std::move(on_ready));
    link_ = link.get();
    return link;
  };
  config.directory.copies = shelf_.get();
  config.directory.fence = &fence_;
  config.directory.range_freed = setup.range_freed;
  config.directory.random = [random = std::make_shared<std::mt19937_64>(random_())] { return (*random)(); };
  config.directory.unix_s = [&registry = setup.registry] { return 1'000'000 + registry.queue().now_us() / 1'000'000; };
  if (pages_) config.tier.times.patience_us = setup.pages.patience_us;
  config.tier.workers = 0;
  config.tier.on_ready = [this] { node_->wake(); };
  joint_ = *JointRegions::create(*node_, std::move(config));
}

JointProcess::~JointProcess() {
  link_->away = true;
  clock_.end();
  if (pages_) pages_->stop_serving();
  joint_->stop_serving();
  while (pages_ && !pages_->is_idle()) turn();
  if (pages_) pages_->forget_all();
  if (shelf_) shelf_->stop();
  joint_.reset();
}

bool JointProcess::turn() {
  bool did = node_->turn();
  if (pages_) did |= pages_->step();
  return did;
}

bool JointProcess::has(cluster::directory::Serial serial, std::uint32_t page) const {
  if (pages_) return pages_->has(serial, page);
  // What the shelf still has of an earlier part in the region is no copy of it.
  const auto* const part = service().directory().participant(serial);
  if (part == nullptr || part->have(page) == cluster::directory::Have::none) return false;
  bool here = false;
  const sharing::SharedPage shared{
      .serial = pagetable::Serial{static_cast<std::uint64_t>(serial)}, .bytes = PageContents::kPageBytes, .page = page};
  shelf_->lend(shared, [&](std::expected<sharing::LentPage, rdma::wire::Answer> lent) {
    here = lent.has_value();
    if (here && !contents_.are(lent->bytes, serial, page))
      wrong_ = fmt::format("a daemon's copy of page {} of region {} has other bytes", page,
                           static_cast<std::uint64_t>(serial));
  });
  return here;
}

}  // namespace vmem::runtime::simulator
