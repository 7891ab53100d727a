// The parts of tiers that run transfers on threads: the ledger of transfers, workers, and page I/O.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <thread>

#include "tiers/async/page_io.hpp"
#include "tiers/async/transfer_ledger.hpp"
#include "tiers/async/workers.hpp"
#include "tiers/scripted_disk.hpp"

namespace {

// How many threads this thread may still create; -1: any number.
thread_local int threads_left = -1;

}  // namespace

// Fails as if the user had reached the limit of threads.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                              void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left == 0) return EAGAIN;
  threads_left -= threads_left > 0 ? 1 : 0;
  return create(thread, attributes, run, argument);
}

namespace vmem::tiers {
namespace {

using std::chrono::microseconds;
using testing::ElementsAre;

constexpr microseconds kLong = std::chrono::seconds(30), kShort = std::chrono::milliseconds(20);
constexpr auto kHandOver = [](std::uint64_t) {};

TEST(TransferLedger, PollCollectsEachCompletionOnceInTheOrderOfTheEnds) {
  int ready = 0;
  TransferLedger ledger([&] { ++ready; });
  const auto first = ledger.begin(Direction::load, kHandOver), second = ledger.begin(Direction::store, kHandOver);
  EXPECT_FALSE(ledger.idle());
  ledger.complete({.id = second, .outcome = Outcome::done, .error = {}, .changed = false}, Direction::store);
  EXPECT_EQ(ledger.in_flight().loads, 1u);
  EXPECT_EQ(ledger.in_flight().stores, 0u);
  ledger.complete({.id = first, .outcome = Outcome::lost, .error = {}, .changed = false}, Direction::load);
  EXPECT_TRUE(ledger.idle());
  EXPECT_EQ(ready, 2);
  std::vector<Completion> completions;
  ledger.poll(completions);
  ASSERT_EQ(completions.size(), 2u);
  EXPECT_EQ(completions[0].id, second);
  EXPECT_EQ(completions[1].id, first);
  ledger.poll(completions);
  EXPECT_EQ(completions.size(), 2u);
}

TEST(TransferLedger, FinishWaitsForTransfersAndChores) {
  TransferLedger ledger([] {});
  const auto id = ledger.begin(Direction::load, kHandOver);
  std::optional<TransferLedger::Chore> chore(ledger);
  std::atomic<int> ended = 0;
  std::thread waits([&] {
    ledger.finish(kLong, "");
    EXPECT_EQ(ended, 2) << "it waits for both";
  });
  // Lets `finish` begin, most of the time.
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  ++ended;
  ledger.complete({.id = id, .outcome = Outcome::done, .error = {}, .changed = false}, Direction::load);
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  ++ended;
  chore.reset();
  waits.join();
  EXPECT_FALSE(ledger.quarantined());
}

TEST(TransferLedger, FinishWaitsForTheCallThatTellsOfTheLastEnd) {
  std::atomic<bool> telling = false, go_on = false, finishing = false, finished = false;
  TransferLedger ledger([&] {
    telling = true;
    while (!go_on) std::this_thread::yield();
    EXPECT_FALSE(finished) << "the owner may be gone";
  });
  const auto id = ledger.begin(Direction::load, kHandOver);
  std::thread completes(
      [&] { ledger.complete({.id = id, .outcome = Outcome::done, .error = {}, .changed = false}, Direction::load); });
  while (!telling) std::this_thread::yield();
  std::thread waits([&] {
    finishing = true;
    ledger.finish(kLong, "");
    finished = true;
  });
  while (!finishing) std::this_thread::yield();
  // Lets `finish` return, if it would.
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  go_on = true;
  completes.join();
  waits.join();
}

TEST(TransferLedger, ATransferThatCouldNotBeHandedOverIsNotWaitedFor) {
  TransferLedger ledger([] {});
  EXPECT_THROW(ledger.begin(Direction::store, [](std::uint64_t) { throw std::bad_alloc(); }), std::bad_alloc);
  EXPECT_TRUE(ledger.idle());
  ledger.finish();
  EXPECT_EQ(ledger.finish(kShort, "a test does not answer"), Finished::all_ended);
}

TEST(TransferLedger, WithoutProgressTheTierIsQuarantinedAndItsOwnerNotCalledAnyMore) {
  int ready = 0;
  TransferLedger ledger([&] { ++ready; });
  const auto id = ledger.begin(Direction::store, kHandOver);
  ledger.finish(kShort, "a test does not answer");
  EXPECT_TRUE(ledger.quarantined());
  ledger.complete({.id = id, .outcome = Outcome::done, .error = {}, .changed = false}, Direction::store);
  ledger.tell_ready();
  EXPECT_EQ(ready, 0);
}

TEST(TransferLedger, ACallThatIsUnderWayAtTheQuarantineIsWaitedFor) {
  std::atomic<bool> telling = false, go_on = false, finished = false;
  TransferLedger ledger([&] {
    telling = true;
    while (!go_on) std::this_thread::yield();
    EXPECT_FALSE(finished) << "the owner may be gone";
  });
  const auto id = ledger.begin(Direction::load, kHandOver);
  ledger.begin(Direction::load, kHandOver);  // without an answer
  std::thread completes(
      [&] { ledger.complete({.id = id, .outcome = Outcome::done, .error = {}, .changed = false}, Direction::load); });
  while (!telling) std::this_thread::yield();
  std::thread waits([&] {
    EXPECT_EQ(ledger.finish(kShort, "a test does not answer"), Finished::quarantined);
    finished = true;
  });
  while (!ledger.quarantined()) std::this_thread::yield();
  // Lets `finish` return, if it would.
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  go_on = true;
  completes.join();
  waits.join();
}

TEST(TransferLedger, AMovedChoreEndsOnce) {
  TransferLedger ledger([] {});
  {
    TransferLedger::Chore first(ledger);
    const TransferLedger::Chore second = std::move(first);
  }
  const TransferLedger::Chore other(ledger);
  ledger.finish(kShort, "a test does not answer");
  EXPECT_TRUE(ledger.quarantined()) << "the last one is running";
}

TEST(Workers, WhatTheyLackMemoryForIsToldAndWhatComesAfterRuns) {
  std::mutex mutex;
  std::vector<int> ran;
  std::vector<Workers::Ended> ended;
  {
    Workers workers("test-work", 1, [](Inbox::Task task) { task(); });
    const auto then = [&](Workers::Ended how) {
      const std::lock_guard lock(mutex);
      ended.push_back(how);
    };
    workers.post([&](std::uint32_t) { ran.push_back(1); }, then);
    workers.post([](std::uint32_t) { throw std::bad_alloc(); }, then);
    workers.post([&](std::uint32_t worker) { ran.push_back(2 + int(worker)); }, then);
  }
  EXPECT_THAT(ran, ElementsAre(1, 2));
  using enum Workers::Ended;
  EXPECT_THAT(ended, ElementsAre(done, no_memory, done));
}

TEST(Workers, AThreadThatCannotStartIsAnErrorAndTheOthersEnd) {
  threads_left = 1;
  EXPECT_THROW(Workers("test-work", 2, [](Inbox::Task) {}), std::system_error);
  threads_left = -1;
  Workers workers("test-work", 2, [](Inbox::Task) {});
}

TEST(Workers, WithoutThreadsTheCallerDoesTheWorkAndDeliversItsEnd) {
  std::vector<std::string> steps;
  Inbox inbox([] {});
  Workers workers("test-work", 0, [&](Inbox::Task task) { inbox.post(std::move(task)); });
  workers.post([&](std::uint32_t) { steps.emplace_back("work"); },
               [&](Workers::Ended how) { steps.emplace_back(how == Workers::Ended::done ? "done" : "no memory"); });
  workers.post([](std::uint32_t) { throw std::bad_alloc(); },
               [&](Workers::Ended how) { steps.emplace_back(how == Workers::Ended::done ? "done" : "no memory"); });
  EXPECT_THAT(steps, ElementsAre("work")) << "ends are tasks of the thread that runs the inbox";
  inbox.run();
  EXPECT_THAT(steps, ElementsAre("work", "done", "no memory"));
}

TEST(Inbox, ATaskThatThrowsLeavesThoseBehindIt) {
  std::vector<int> ran;
  Inbox inbox([] {});
  inbox.post([&] { ran.push_back(1); });
  inbox.post([] { throw std::bad_alloc(); });
  inbox.post([&] { ran.push_back(3); });
  EXPECT_THROW(inbox.run(), std::bad_alloc);
  EXPECT_TRUE(inbox.run());
  EXPECT_THAT(ran, ElementsAre(1, 3));
}

TEST(Inbox, WhatIsClearedNeitherRunsNorIsKept) {
  Inbox inbox([] {});
  const auto held = std::make_shared<int>();
  inbox.post([held] { ADD_FAILURE() << "it ran"; });
  inbox.clear();
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_FALSE(inbox.run());
}

TEST(Inbox, ATaskPostedByATaskRunsInTheNextTurn) {
  std::vector<int> order;
  int wakes = 0;
  Inbox* self = nullptr;
  Inbox inbox([&] { ++wakes; });
  self = &inbox;
  inbox.post([&] {
    order.push_back(1);
    self->post([&] { order.push_back(3); });
  });
  inbox.post([&] { order.push_back(2); });
  EXPECT_TRUE(inbox.run());
  EXPECT_THAT(order, ElementsAre(1, 2));
  EXPECT_TRUE(inbox.run());
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
  EXPECT_FALSE(inbox.run());
  EXPECT_EQ(wakes, 3);
}

class PageIoTest : public testing::Test {
 protected:
  static constexpr std::uint32_t kRequest = 8192;

  PageIo::Page page(Io::Kind kind, std::uint64_t offset, std::vector<std::byte>& memory) {
    return {.kind = kind,
            .file = 0,
            .offset = offset,
            .bytes = memory.size(),
            .needed_bytes = memory.size(),
            .memory = memory.data(),
            .most_request_bytes = kRequest};
  }
  // Until nothing is in flight.
  void run(int turns = 8) {
    std::vector<IoResult> results;
    for (int i = 0; i < turns; ++i) {
      pages_.send();
      results.clear();
      ASSERT_TRUE(disk_.wait(results, {}));
      for (const IoResult& result : results) pages_.take(result);
    }
  }
  std::vector<Io> seen_;
  std::deque<Fate> fates_;  // of the next requests; then they succeed
  ScriptedDisk disk_{[this](const Io& io) {
    seen_.push_back(io);
    if (fates_.empty()) return Fate{};
    const Fate fate = fates_.front();
    fates_.pop_front();
    return fate;
  }};
  PageIo pages_{disk_};
};

TEST_F(PageIoTest, AHeadAndItsPageAreOneRangeOfTheFile) {
  std::vector<std::byte> head(4096, std::byte{1}), memory(20480, std::byte{2});
  PageIo::Page write = page(Io::Kind::write, 4096, memory);
  write.head = head.data();
  write.head_bytes = 4096;
  write.bytes = write.needed_bytes = 24576;
  int ended = 0;
  pages_.begin(write, [&](const auto& failure) { ended += !failure; });
  run();
  EXPECT_EQ(ended, 1);
  ASSERT_EQ(seen_.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(seen_[i].offset, 4096 + i * kRequest);
  std::vector<std::byte> back(24576);
  pages_.begin(page(Io::Kind::read, 4096, back), [&](const auto& failure) { ended += !failure; });
  run();
  EXPECT_EQ(ended, 2);
  EXPECT_EQ(std::count(back.begin(), back.begin() + 4096, std::byte{1}), 4096);
  EXPECT_EQ(std::count(back.begin() + 4096, back.end(), std::byte{2}), 20480);
}

TEST_F(PageIoTest, TheFirstFailedRequestIsToldWhenTheLastOneHasEnded) {
  std::vector<std::byte> memory(24576);
  fates_ = {Fate{}, Fate{.error = EIO}, Fate{.error = ENOSPC}};
  std::optional<PageIo::Failure> failed;
  pages_.begin(page(Io::Kind::write, 0, memory), [&](const auto& failure) { failed = failure; });
  run();
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->cause, PageIo::Failure::Cause::request);
  EXPECT_EQ(failed->error, EIO);
  EXPECT_EQ(failed->io.offset, kRequest);
}

TEST_F(PageIoTest, APageMayEndBeforeItsLastBlockDoesAndNotBeforeItsNeededBytes) {
  std::vector<std::byte> memory(8192);
  PageIo::Page read = page(Io::Kind::read, 0, memory);
  read.needed_bytes = 5000;
  std::vector<bool> failed;
  const auto ended = [&](const auto& failure) { failed.push_back(failure.has_value()); };
  fates_ = {Fate{.moves_bytes = 5120}};
  pages_.begin(read, ended);
  run();
  fates_ = {Fate{.moves_bytes = 4096}, Fate{.moves_bytes = 0}};
  pages_.begin(read, ended);
  run();
  EXPECT_THAT(failed, ElementsAre(false, true));
}

TEST_F(PageIoTest, AFailedQueueEndsPagesWithUnsentRequestsOnceThoseInFlightHaveEnded) {
  std::vector<std::byte> large(16 * kRequest), small(kRequest);  // the queue takes 8 requests
  std::vector<int> failed;
  const auto ended = [&](int which) {
    return [&, which](const std::optional<PageIo::Failure>& failure) {
      EXPECT_EQ(failure->cause, PageIo::Failure::Cause::queue);
      EXPECT_EQ(failure->queue.message, "gone");
      failed.push_back(which);
    };
  };
  pages_.begin(page(Io::Kind::write, 0, large), ended(1));
  pages_.begin(page(Io::Kind::write, 1 << 20, small), ended(2));
  pages_.send();
  EXPECT_EQ(seen_.size(), 8u);
  pages_.queue_failed({VMEM_ERROR_DRIVER, EBADF, "gone"});
  EXPECT_THAT(failed, ElementsAre(2)) << "the first page has requests in flight";
  run();
  EXPECT_THAT(failed, ElementsAre(2, 1));
  EXPECT_EQ(seen_.size(), 8u);
}

}  // namespace
}  // namespace vmem::tiers
