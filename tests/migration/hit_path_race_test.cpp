// A race without a call between its steps that a script could hook: a thread publishes a hold and
// reads the state, while the mover changes the state and reads the holds. Real threads run both. A
// thread that was told its page is usable reads and writes the page, so a bug is a segmentation
// fault or a wrong value.
#include <atomic>
#include <thread>

#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

class HitPathRace : public MoverTest {
 protected:
  // As Runtime does: on a miss the thread withdraws its hold and retries.
  static bool use_if_usable(const pagetable::AddressSpace& space, Actor& actor, Region& region, std::uint64_t value) {
    const std::uint32_t begin = region.granule_of(0);
    const Span span({begin}, 1, Access::write);
    const std::uintptr_t address = space.address_of(begin);
    const std::uint32_t hold = actor.slot->publish(span, {address, kPageBytes});
    const bool hit = PageState(region.pages[0].state.load(std::memory_order_seq_cst)).allows(Access::write);
    if (hit) {
      auto* const word = reinterpret_cast<volatile std::uint64_t*>(address);
      *word = value;
      EXPECT_EQ(*word, value);
      (void)actor.slot->log.append({span, actor.record->open_stamp()});
    }
    actor.slot->clear(hold);
    return hit;
  }
};

TEST_F(HitPathRace, AThreadThatIsToldItsPageIsUsableFindsItMapped) {
  start();
  Region& region = allocate(1);
  Actor &worker = actor(), &server = actor();
  constexpr std::uint64_t kEvictions = 500, kHits = 500;
  std::atomic<std::uint64_t> hits{0};
  std::atomic<bool> enough{false};
  std::thread thread([&] {
    while (!enough) {
      if (use_if_usable(*space, worker, region, hits + 1)) {
        ++hits;
      } else {
        std::this_thread::yield();
      }
    }
  });
  // Until both happened often enough; each side delays the other.
  while (inside->counters().evictions < kEvictions || hits < kHits) {
    const Status acquired = acquire(server, writing(region, 0));
    EXPECT_TRUE(acquired);
    release(server, writing(region, 0));
    for (int i = 0; i < 20 && in_hbm(region, 0); ++i) evict(writing(region, 0));
  }
  enough = true;
  thread.join();
  finish_work(worker);
  finish_work(server);
  evict(writing(region, 0));
  settle();
  OpenPageRequest open;
  open.run = {&region, 0, 1};
  ASSERT_TRUE(ask(open));
  const auto* stored = reinterpret_cast<const std::uint64_t*>(open.host);
  if (stored == nullptr) stored = reinterpret_cast<const std::uint64_t*>(open.device_window);
  EXPECT_EQ(*stored, hits.load()) << "the last write of the last use";
  ClosePageRequest close;
  close.run = open.run;
  ASSERT_TRUE(ask(close));
}

}  // namespace
}  // namespace vmem::migration
