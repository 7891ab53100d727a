#include "sharing/shared_tier.hpp"

#include <fmt/format.h>

#include <bit>
#include <utility>

namespace vmem::sharing {

using tiers::SlotId;
using tiers::Transfer;

class SharedTier::Source final : public tiers::PageSource {
 public:
  Source(SharedTier& tier, RegionRef region) : tier_(tier), region_(std::move(region)) {}
  ~Source() override {
    if (first_) tier_.slots_.erase(*first_);
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  std::string name() const override { return fmt::format("the published region '{}'", region_->name); }
  std::optional<tiers::RegionPlace> place() const override {
    const auto shift = std::uint32_t(std::countr_zero(region_->page_bytes >> pagetable::kGranuleShift));
    return tiers::RegionPlace{.first_granule = region_->first_granule, .page_shift = shift, .serial = region_->serial};
  }
  std::uint64_t head_bytes() const override { return 0; }
  std::uint64_t bytes() const override { return region_->bytes; }
  Result<SlotId> lay_out(std::uint64_t page_bytes, std::uint32_t count) override {
    if (page_bytes != region_->page_bytes)
      return fail(VMEM_ERROR_INTERNAL,
                  fmt::format("{} has pages of {} bytes, not {}", name(), region_->page_bytes, page_bytes));
    VMEM_ASSIGN(first_, tier_.slots_.add(count, region_));
    return *first_;
  }

 private:
  SharedTier& tier_;
  const RegionRef region_;
  std::optional<SlotId> first_;
};

SharedTier::SharedTier(rdma::Node& node, PageFinder& finder, PageHolder& holder, Config config)
    : node_(node),
      config_(std::move(config)),
      info_{.name = "shared", .busy_pages = 8},
      ledger_(config_.on_ready),
      workers_(std::make_unique<tiers::Workers>("vmem-shared", config_.workers,
                                                [this](tiers::Inbox::Task task) { inbox_.post(std::move(task)); })),
      jobs_(config_.times, {node, *this, finder, *workers_, ledger_, inbox_, holder}) {
  node_.add(*this);
}

SharedTier::~SharedTier() {
  node_.remove(*this);
  workers_.reset();
  inbox_.clear();
}

std::shared_ptr<tiers::PageSource> SharedTier::open(SharedRegion region) {
  return std::make_shared<Source>(*this, std::make_shared<const SharedRegion>(std::move(region)));
}

SharedCounters SharedTier::statistics() const { return jobs_.counters(); }

// ---- the mover's calls ----

Status SharedTier::submit(std::span<Transfer> transfers) {
  for (const Transfer& transfer : transfers) {
    if (transfer.direction == tiers::Direction::load) continue;
    return fail(VMEM_ERROR_INTERNAL, "a page of a published region was to be stored; they are only read");
  }
  for (Transfer& transfer : transfers) {
    const auto [region, index] = slots_.find(transfer.slot);
    auto job = std::make_shared<SharedJob>();
    job->page = {.serial = region->serial, .bytes = transfer.bytes, .page = index};
    job->key = region->key;
    job->earlier = region->earlier;
    job->own = region->own;
    transfer.id = ledger_.begin(tiers::Direction::load, [&](std::uint64_t id) {
      job->transfer = transfer;
      job->transfer.id = id;
      inbox_.post([this, job] { jobs_.begin(job); });
    });
  }
  return {};
}

Status SharedTier::poll(std::vector<tiers::Completion>& completions) {
  ledger_.poll(completions);
  return {};
}

tiers::Finished SharedTier::finish() noexcept {
  hurry_all();
  ledger_.finish();
  return tiers::Finished::all_ended;
}

std::uint32_t SharedTier::queue(SlotId slot) const {
  constexpr std::uint32_t kQueues = 1u << 22;
  return static_cast<std::uint32_t>(slots_.find(slot).value->serial) % kQueues;
}

void SharedTier::hurry(std::uint64_t transfer) {
  inbox_.post([this, transfer] { jobs_.hurry(transfer); });
}

std::string SharedTier::where(SlotId slot) const {
  return fmt::format("the nodes that have the published region '{}'", slots_.find(slot).value->name);
}

// ---- the node's thread ----

bool SharedTier::step() {
  bool did = inbox_.run();
  did |= jobs_.go_on();
  return did;
}

}  // namespace vmem::sharing
