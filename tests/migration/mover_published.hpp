// Regions of the mover's tests that are published, and end as their node ends them.
#pragma once

#include <vector>

#include "migration/mover_harness.hpp"

namespace vmem::migration {

class PublishedTest : public MoverTest {
 protected:
  // As its node ends it.
  Status close(Region& region, Actor* last_user = nullptr) { return free(region, last_user, true); }
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
  void close_page(Region& region, std::uint32_t page) {
    ClosePageRequest close;
    close.run = {&region, page, 1};
    EXPECT_TRUE(ask(close));
  }
  // Opens the page as for another node. True: it was here.
  bool opens_here(Region& region, std::uint32_t page) {
    OpenPageRequest open;
    open.run = {&region, page, 1};
    open.only_here = true;
    EXPECT_TRUE(ask(open));
    if (!open.absent) close_page(region, page);
    return !open.absent;
  }
  std::vector<std::uint32_t> unwritten;
};

}  // namespace vmem::migration
