// Pages of published regions that a program lends to other nodes.
#include "runtime/cluster/mover_pages.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <mutex>
#include <new>
#include <set>
#include <string_view>
#include <thread>
#include <vector>

#include "gpu/fault_injection.hpp"
#include "runtime/cluster/lent_pages.hpp"

namespace vmem::test {
namespace {

TEST_F(LentPages, APageInHbmIsLentAsACopyAndLeavesHbmMeanwhile) {
  start();
  publish(4);
  into_hbm(0, 4);
  ASSERT_EQ(places().bytes_hbm, 4 * kPage);
  Reply reply = get(2);
  ASSERT_TRUE(reply);
  EXPECT_TRUE(right(*reply, 2));
  fill_hbm();
  EXPECT_EQ(places().bytes_hbm, 0u);
  EXPECT_TRUE(right(*reply, 2));
  reply->give_back();
}

TEST_F(LentPages, APageInHostMemoryIsLentWhereItIs) {
  start({.staging_bytes = kPage});
  publish(4);
  fill_hbm();
  ASSERT_EQ(places().bytes_host, 4 * kPage);
  std::vector<Reply> lent;
  for (const std::uint32_t page : {1u, 1u, 2u, 3u}) lent.push_back(get(page));
  for (const Reply& each : lent) ASSERT_TRUE(each);
  EXPECT_EQ(lent[0]->bytes.data(), lent[1]->bytes.data());
  EXPECT_TRUE(right(*lent[0], 1));
  EXPECT_TRUE(right(*lent[3], 3));
  for (Reply& each : lent) each->give_back();
  EXPECT_TRUE(lends(0));
}

// What lies behind the region's end in its last page may be what this program had there before.
TEST_F(LentPages, NothingBehindTheEndOfARegionIsLent) {
  constexpr std::size_t kTail = 1000;
  start();
  memory = allocate(2 * kPage - kTail);
  const std::vector<std::byte> old(kPage, std::byte{7});
  ASSERT_TRUE(runtime->copies().write(memory, old.data(), kPage));
  ASSERT_TRUE(runtime->copies().write(memory + kPage, old.data(), kPage - kTail));
  migration::OpenPageRequest open;
  open.run = {&region(), 1, 1};
  open.write = true;
  ASSERT_TRUE(runtime->mover().call(open));
  ASSERT_NE(open.host, nullptr);
  std::memcpy(open.host, old.data(), kPage);
  migration::ClosePageRequest close;
  close.run = open.run;
  ASSERT_TRUE(runtime->mover().call(close));
  freeze();
  const auto ends_in_zeros = [&] {
    Reply reply = get(1);
    ASSERT_TRUE(reply);
    std::vector<std::byte> expected = old;
    std::fill(expected.end() - kTail, expected.end(), std::byte{0});
    EXPECT_EQ(std::memcmp(reply->bytes.data(), expected.data(), kPage), 0);
    EXPECT_TRUE(key->proves(expected, page_of(1), reply->tag));
    reply->give_back();
  };
  ends_in_zeros();
  use(memory, 2 * kPage - kTail, VMEM_READ, [] {});
  gpu.synchronize(stream);
  ASSERT_EQ(places().bytes_hbm, 2 * kPage);
  ends_in_zeros();
}

TEST_F(LentPages, WhoDoesNotGiveItsPagesBackHoldsUpOthersNotForLong) {
  start({.staging_bytes = kPage, .most_wait_us = 50'000});
  publish(2);
  into_hbm(0, 2);
  Reply first = get(0);
  ASSERT_TRUE(first);
  EXPECT_EQ(refusal(1), Answer::again);
  first->give_back();
  EXPECT_TRUE(lends(1));
}

TEST_F(LentPages, APageOnADiskIsLoadedForOthers) {
  start({}, 16, 192);
  publish(40);
  ASSERT_TRUE(runtime->requests().quiesce());
  ASSERT_GT(places().bytes_below_host, 0u);
  for (std::uint32_t page = 0; page < 40; ++page) {
    Reply reply = get(page);
    ASSERT_TRUE(reply) << page;
    EXPECT_TRUE(right(*reply, page)) << page;
    reply->give_back();
  }
}

// The directory hears of it: or else it would name this node for ever.
TEST_F(LentPages, APageThatIsLostIsSaidToBe) {
  std::mutex mutex;
  std::set<std::uint32_t> lost;
  start({.gone =
             [&](const sharing::SharedPage& page) {
               const std::lock_guard lock(mutex);
               lost.insert(page.page);
             }},
        16, 192);
  publish(40);
  ASSERT_TRUE(runtime->requests().quiesce());
  const std::uint64_t below = places().bytes_below_host / kPage;
  ASSERT_GT(below, 0u);
  spoil_disk();
  std::set<std::uint32_t> refused;
  for (std::uint32_t page = 0; page < 40; ++page) {
    Reply reply = get(page);
    if (reply) {
      EXPECT_TRUE(right(*reply, page)) << page;
      reply->give_back();
    } else {
      EXPECT_EQ(reply.error(), Answer::damaged);
      refused.insert(page);
    }
  }
  EXPECT_GE(refused.size(), below);
  pages.reset();
  EXPECT_EQ(lost, refused);
}

// Before the mover can begin to load it: or else what is said of it could come after the page has.
TEST_F(LentPages, APageThatIsLostIsSaidToBeThoughAllWorkersAreBusy) {
  std::atomic<bool> said = false;
  start({.workers = 1, .gone = [&](const sharing::SharedPage&) { said = true; }}, 16, 192);
  publish(40);
  ASSERT_TRUE(runtime->requests().quiesce());
  spoil_disk();
  std::promise<void> begun, end;
  pages->lend(page_of(39), [&](Reply lent) {
    begun.set_value();
    end.get_future().wait();
    if (lent) lent->give_back();
  });
  begun.get_future().wait();
  std::vector<std::future<Reply>> asked;
  for (std::uint32_t page = 0; page < 8; ++page) asked.push_back(ask(page_of(page)));
  EXPECT_TRUE(comes_true([&] { return said.load(); }));
  EXPECT_FALSE(is_here(asked.front()));
  end.set_value();
  for (auto& each : asked) {
    ASSERT_TRUE(comes(each));
    if (Reply reply = each.get()) reply->give_back();
  }
}

TEST_F(LentPages, APageThatWasNeverWrittenIsZero) {
  start();
  publish(3, {1});
  Reply zero = get(1);
  ASSERT_TRUE(zero);
  std::vector<std::byte> zeros(kPage);
  EXPECT_TRUE(std::ranges::equal(zero->bytes, zeros));
  EXPECT_TRUE(key->proves(zeros, page_of(1), zero->tag));
  zero->give_back();
  EXPECT_TRUE(lends(0));
  EXPECT_TRUE(lends(2));
  pages->remove(kSerial);
  free_to_the_end();
}

TEST_F(LentPages, OtherRegionsPagesAndSizesAreUnknown) {
  start();
  publish(2);
  sharing::SharedPage page = page_of(0);
  page.serial = pagetable::Serial{6};
  EXPECT_EQ(refusal(page), Answer::unknown);
  EXPECT_EQ(refusal(2), Answer::unknown);
  page = page_of(1);
  page.bytes = kPage / 2;
  EXPECT_EQ(refusal(page), Answer::unknown);
  EXPECT_TRUE(lends(1));
}

TEST_F(LentPages, OnlyItsTenantMayReadARegion) {
  start();
  publish(1);
  EXPECT_TRUE(pages->may_read(kSerial, "team"));
  EXPECT_FALSE(pages->may_read(kSerial, "other"));
  EXPECT_FALSE(pages->may_read(kSerial, ""));
  EXPECT_FALSE(pages->may_read(pagetable::Serial{6}, "team"));
  pages->remove(kSerial);
  EXPECT_FALSE(pages->may_read(kSerial, "team"));
}

TEST_F(LentPages, PagesThatMoveAreLentAsTheyWerePublished) {
  start();
  constexpr std::uint32_t kCount = 24;
  publish(kCount);
  const std::uint64_t moved = figures().migrated_in_bytes;
  std::atomic<bool> enough = false;
  std::thread mover([&] {
    for (std::uint32_t i = 0; !enough; ++i) use(memory + i % kCount * kPage, kPage, VMEM_READ, [] {});
    gpu.synchronize(stream);
  });
  for (std::uint32_t i = 0; i < 300; ++i) {
    EXPECT_TRUE(lends(i * 7 % kCount)) << i;
    if (HasFailure()) break;
  }
  enough = true;
  mover.join();
  EXPECT_GT(figures().migrated_in_bytes - moved, 100 * kPage);
}

// More than the mover opens a page at a time.
TEST_F(LentPages, OnePageIsLentToManyAtOnce) {
  start();
  publish(1);
  constexpr std::size_t kMany = 300, kAtOnce = 255;
  std::vector<std::future<Reply>> asked;
  for (std::size_t i = 0; i < kMany; ++i) asked.push_back(ask(page_of(0)));
  std::vector<Reply> lent;
  for (std::size_t i = 0; i < kMany; ++i) {
    if (i >= kAtOnce) lent[i - kAtOnce]->give_back();
    ASSERT_TRUE(comes(asked[i])) << i;
    lent.push_back(asked[i].get());
    ASSERT_TRUE(lent[i]);
  }
  EXPECT_TRUE(right(*lent.back(), 0));
  for (std::size_t i = kMany - kAtOnce; i < kMany; ++i) lent[i]->give_back();
}

// A program computes on what it has published, and its readers are slow.
TEST_F(LentPages, NeitherKernelsNorReadersWaitForEachOther) {
  start();
  publish(2);
  fill_hbm();
  Reply in_place = get(0);
  ASSERT_TRUE(in_place);
  std::promise<void> end;
  use(memory, 2 * kPage, VMEM_READ, [ended = end.get_future().share()] { ended.wait(); });
  EXPECT_EQ(places().bytes_hbm, 2 * kPage);
  EXPECT_TRUE(lends(1)) << "while the kernel reads it";
  EXPECT_TRUE(right(*in_place, 0));
  end.set_value();
  gpu.synchronize(stream);
  in_place->give_back();
}

// The copies that wait are made in order; pages in host memory need none.
TEST_F(LentPages, CopiesBeyondTheBoundWaitInOrder) {
  start({.staging_bytes = 2 * kPage, .most_waiting = 3});
  publish(8);
  fill_hbm();
  into_hbm(0, 7);
  ASSERT_EQ(places().bytes_hbm, 7 * kPage);
  std::vector<std::future<Reply>> asked;
  for (std::uint32_t page = 0; page < 6; ++page) asked.push_back(ask(page_of(page)));
  ASSERT_TRUE(comes(asked[5]));
  EXPECT_EQ(asked[5].get().error(), Answer::again);
  EXPECT_TRUE(lends(7)) << "it is in host memory";
  std::vector<Reply> lent;
  for (std::uint32_t page = 0; page < 5; ++page) {
    ASSERT_TRUE(comes(asked[page])) << page;
    if (page + 1 < 5 && page > 0) {
      EXPECT_FALSE(is_here(asked[page + 1])) << page;
    }
    lent.push_back(asked[page].get());
    ASSERT_TRUE(lent[page]);
    EXPECT_TRUE(right(*lent[page], page));
    if (page > 0) lent[page - 1]->give_back();
  }
  EXPECT_EQ(refusal(7), Answer::done);
  lent[4]->give_back();
  EXPECT_TRUE(lends(6));
}

TEST_F(LentPages, APageThatLeftHbmWhileItWaitedForRoomIsLentAllTheSame) {
  start({.staging_bytes = kPage});
  publish(4);
  into_hbm(0, 4);
  Reply first = get(0);
  ASSERT_TRUE(first);
  auto second = ask(page_of(1)), third = ask(page_of(2));
  fill_hbm();  // no waiting page is open: all leave
  EXPECT_EQ(places().bytes_hbm, 0u);
  EXPECT_FALSE(is_here(second));
  first->give_back();
  ASSERT_TRUE(comes(second));
  ASSERT_TRUE(comes(third)) << "room that was not needed goes to the next";
  std::uint32_t page = 1;
  for (auto* each : {&second, &third}) {
    Reply reply = each->get();
    ASSERT_TRUE(reply);
    EXPECT_TRUE(right(*reply, page++));
    reply->give_back();
  }
}

TEST_F(LentPages, RemovalWaitsForPagesThatAreLentInPlace) {
  start();
  publish(2);
  fill_hbm();
  Reply lent = get(0);
  ASSERT_TRUE(lent);
  std::atomic<bool> given = false, early = false;
  std::thread remover([&] {
    pages->remove(kSerial);
    early = !given;
  });
  EXPECT_TRUE(comes_true([&] { return refusal(1) == Answer::unknown; }));
  for (int i = 0; i < 1000; ++i) (void)places();  // time for a removal that does not wait
  EXPECT_TRUE(right(*lent, 0));
  given = true;
  lent->give_back();
  remover.join();
  EXPECT_FALSE(early);
  free_to_the_end();
}

TEST_F(LentPages, APageThatCannotBeCopiedIsRefusedAndComesBack) {
  gpu::FaultInjector faults(driver);
  driver = faults.driver();
  start({.staging_bytes = kPage});
  publish(2);
  into_hbm(0, 2);
  for (const char* const function : {"cuMemHostAlloc", "cuMemcpyDtoHAsync"}) {
    faults.fail_always(function, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(refusal(0), Answer::failed) << function;
    faults.fail_always(function, CUDA_SUCCESS);
  }
  faults.on_call([](std::string_view function) {
    if (function == "cuMemcpyDtoHAsync") throw std::bad_alloc();
  });
  EXPECT_EQ(refusal(0), Answer::failed);
  faults.on_call({});
  EXPECT_TRUE(lends(0));
  EXPECT_TRUE(lends(1));
  pages->remove(kSerial);
  free_to_the_end();
  pages.reset();
  EXPECT_TRUE(runtime->shut_down());
  runtime.reset();
}

// Whoever was to send it has dropped it, for want of memory.
TEST_F(LentPages, APageThatIsDroppedIsGivenBack) {
  start();
  publish(2);
  into_hbm(0, 1);
  for (const std::uint32_t page : {0u, 1u}) {
    const Reply lent = get(page);
    EXPECT_TRUE(lent);
  }
  pages->remove(kSerial);
  free_to_the_end();
}

TEST_F(LentPages, ACopyOutlivesItsRegion) {
  start({.staging_bytes = kPage});
  publish(3);
  into_hbm(0, 3);
  Reply lent = get(0);
  ASSERT_TRUE(lent);
  auto waits = ask(page_of(1));
  pages->remove(kSerial);
  ASSERT_TRUE(comes(waits));
  EXPECT_EQ(waits.get().error(), Answer::unknown);
  free_to_the_end();
  EXPECT_TRUE(right(*lent, 0));
  lent->give_back();
}

TEST_F(LentPages, ARemovedRegionMayBeAddedAgain) {
  start();
  publish(1);
  pages->remove(kSerial);
  pages->remove(kSerial);
  EXPECT_EQ(refusal(0), Answer::unknown);
  pages->add(kSerial, {&region(), key, "team"});
  EXPECT_TRUE(lends(0));
}

TEST_F(LentPages, AfterTheEndNothingIsLentAndNothingHangs) {
  start({.staging_bytes = kPage});
  publish(4);
  fill_hbm();
  into_hbm(0, 2);
  Reply copy = get(0), in_place = get(3);
  ASSERT_TRUE(copy && in_place);
  auto waits = ask(page_of(1));
  runtime->stop();
  EXPECT_EQ(refusal(2), Answer::failed);
  EXPECT_TRUE(right(*copy, 0));
  EXPECT_TRUE(right(*in_place, 3));
  copy->give_back();
  ASSERT_TRUE(comes(waits));
  EXPECT_EQ(waits.get().error(), Answer::failed);
  in_place->give_back();
  pages->remove(kSerial);
  pages.reset();
  runtime.reset();
}

}  // namespace
}  // namespace vmem::test
