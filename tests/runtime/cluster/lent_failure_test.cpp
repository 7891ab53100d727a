// A temporary lack of memory while pages are lent: readers may have to ask again, and no page stays
// lent.
#include "base/log.hpp"
#include "runtime/cluster/lent_pages.hpp"
#include "runtime/failing_allocations.hpp"

namespace vmem::test {
namespace {

constexpr std::uint32_t kRounds = 6;
constexpr std::uint32_t kAtATime = 8;  // refusals while one page is lent

struct LentPagesFailure : LentPages {
  LentPagesFailure() { log::set_level(log::Level::off); }
  ~LentPagesFailure() override { log::set_level(log::Level::warn); }
  // Like get, with memory for the test's own work only.
  Reply get_short_of_memory(std::uint32_t page, std::uint32_t apart) {
    auto promise = std::make_shared<std::promise<Reply>>();
    auto reply = promise->get_future();
    FailingAllocations::arm(kAtATime, apart);
    pages->lend(page_of(page), [promise](Reply lent) { promise->set_value(std::move(lent)); });
    reply.wait();
    refused += FailingAllocations::disarm();
    return reply.get();
  }
  std::uint32_t refused = 0;
};

TEST_F(LentPagesFailure, EachPageIsRightOrRefusedAndComesBack) {
  start({.staging_bytes = 2 * kPage}, 32);
  constexpr std::uint32_t kCount = 8;
  publish(kCount);
  std::uint32_t lent = 0;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    fill_hbm();
    into_hbm(0, kCount / 2);
    for (std::uint32_t page = 0; page < kCount; ++page) {
      Reply reply = get_short_of_memory(page, round % 3);
      if (!reply) continue;
      EXPECT_TRUE(right(*reply, page)) << page;
      reply->give_back();
      ++lent;
    }
  }
  EXPECT_GT(refused, 0u);
  EXPECT_GT(lent, 0u);
  for (std::uint32_t page = 0; page < kCount; ++page) EXPECT_TRUE(lends(page)) << page;
  pages->remove(kSerial);
  free_to_the_end();
}

}  // namespace
}  // namespace vmem::test
