// Regions of the mover's tests that are published, and end as their node ends them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "migration/mover_harness.hpp"

namespace vmem::migration {

class PublishedTest : public MoverTest {
 protected:
  // As its node ends it.
  Status close(Region& region, Actor* last_user = nullptr) { return free(region, last_user, true); }
  void close_page(Region& region, std::uint32_t page) {
    ClosePageRequest close;
    close.run = {&region, page, 1};
    EXPECT_TRUE(ask(close));
  }
  // Opens the page as for another node. True: it was here. Else `comes` says whether it is on its
  // way.
  bool opens_here(Region& region, std::uint32_t page) {
    OpenPageRequest open;
    open.run = {&region, page, 1};
    open.for_other_node = true;
    EXPECT_TRUE(ask(open));
    if (!open.absent) close_page(region, page);
    comes = open.coming;
    return !open.absent;
  }
  bool comes = false;
};

class Freeze : public PublishedTest {
 protected:
  Status freeze(Region& region) {
    FreezeRequest request;
    aim(request, region);
    const Status frozen = ask(request);
    unwritten = request.unwritten;
    return frozen;
  }
  static void aim(FreezeRequest& request, Region& region) {
    request.region = &region;
    request.first_granule = region.first.index;
  }
  std::vector<std::uint32_t> unwritten;
};

// A published region of another node.
class Opened final : public tiers::PageSource {
 public:
  Opened(std::shared_ptr<tiers::PageSource> pages, tiers::RegionPlace place)
      : pages_(std::move(pages)), place_(place) {}
  std::string name() const override { return "the published region 'weights'"; }
  std::optional<tiers::RegionPlace> place() const override { return place_; }
  std::uint64_t head_bytes() const override { return 0; }
  std::uint64_t bytes() const override { return pages_->bytes(); }
  Result<tiers::SlotId> lay_out(std::uint64_t page_bytes, std::uint32_t count) override {
    return pages_->lay_out(page_bytes, count);
  }

 private:
  const std::shared_ptr<tiers::PageSource> pages_;
  const tiers::RegionPlace place_;
};

class OpenRegion : public PublishedTest {
 protected:
  static constexpr tiers::RegionPlace kPlace{.first_granule = 40, .page_shift = 1, .serial = pagetable::Serial{5}};
  Result<Region*> open(std::uint32_t pages, const tiers::RegionPlace& place = kPlace) {
    AllocateRequest request;
    const std::uint64_t page_bytes = kPageBytes << place.page_shift;
    request.source = std::make_shared<Opened>(files->map(pages * page_bytes), place);
    VMEM_TRY(ask(request));
    return request.region;
  }
};

}  // namespace vmem::migration
