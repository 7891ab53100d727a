// Detects completed work: epochs, reused stream handles, default streams, captures.
#include "migration/streams.hpp"

#include <set>
#include <thread>
#include <utility>

#include "base/clock.hpp"
#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

class Streams : public MoverTest {
 protected:
  void SetUp() override { start(); }
  CUstream make() {
    CUstream stream = nullptr;
    EXPECT_EQ((*driver)->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return stream;
  }
  bool poll() {
    const auto polled = streams->poll();
    EXPECT_TRUE(polled);
    return *polled;
  }
};

TEST_F(Streams, AStampIsCompleteWhenTheEventOfItsEpochIs) {
  Actor& a = actor();
  Gate kernel = gate(a);
  const Stamp first = a.record->open_stamp();
  EXPECT_FALSE(streams->complete(first));
  EXPECT_TRUE(streams->idle());
  ASSERT_TRUE(streams->close_epoch(*a.record));
  const Stamp second = a.record->open_stamp();
  EXPECT_EQ(second.epoch(), first.epoch() + 1);
  EXPECT_FALSE(poll());
  EXPECT_FALSE(streams->idle());
  kernel.open();
  EXPECT_EQ((*driver)->cuStreamSynchronize(a.stream), CUDA_SUCCESS);
  EXPECT_TRUE(poll());
  EXPECT_TRUE(streams->complete(first));
  EXPECT_FALSE(streams->complete(second)) << "nothing marks its end";
  EXPECT_TRUE(streams->complete(Stamp()));
}

TEST_F(Streams, EpochsEndInTheirOrder) {
  Actor& a = actor();
  std::vector<Stamp> stamps;
  std::vector<std::unique_ptr<Gate>> kernels;
  for (int i = 0; i < 4; ++i) {
    kernels.push_back(std::make_unique<Gate>(*driver, a.stream));
    stamps.push_back(a.record->open_stamp());
    ASSERT_TRUE(streams->close_epoch(*a.record));
  }
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    EXPECT_FALSE(streams->complete(stamps[i]));
    kernels[i]->open();
    while (!poll()) std::this_thread::yield();
    for (std::size_t k = 0; k < kernels.size(); ++k) EXPECT_EQ(streams->complete(stamps[k]), k <= i);
  }
}

TEST_F(Streams, UsesCloseAnEpochNowAndThenAndTheMoverWhenItWantsToKnow) {
  Actor& a = actor();
  const Stamp first = a.record->open_stamp();
  for (std::uint32_t i = 0; i + 1 < StreamTable::kUsesPerEpoch; ++i) ASSERT_TRUE(streams->count_use(*a.record));
  EXPECT_EQ(a.record->open_stamp(), first);
  ASSERT_TRUE(streams->count_use(*a.record));
  const Stamp second = a.record->open_stamp();
  EXPECT_NE(second, first);
  EXPECT_TRUE(*streams->cover(first)) << "covered already";
  EXPECT_EQ(a.record->open_stamp(), second);
  EXPECT_TRUE(*streams->cover(second));
  EXPECT_NE(a.record->open_stamp(), second);
  EXPECT_EQ((*driver)->cuStreamSynchronize(a.stream), CUDA_SUCCESS);
  poll();
  EXPECT_TRUE(streams->complete(second));
}

TEST_F(Streams, AStreamKeepsItsRecordAndAnUnknownHandleIsRefused) {
  Actor& a = actor();
  EXPECT_EQ(*streams->find(a.stream), a.record);
  EXPECT_EQ(streams->find(reinterpret_cast<CUstream>(0xdead0)).error().status, VMEM_ERROR_INVALID_VALUE);
}

TEST_F(Streams, AClosedStreamsWorkStillCountsAndItsRecordServesAnotherOnlyAfterIt) {
  const CUstream stream = make();
  StreamRecord* const record = *streams->find(stream);
  Gate kernel(*driver, stream);
  const Stamp last = record->open_stamp();
  ASSERT_TRUE(streams->close_stream(stream));
  EXPECT_FALSE(*streams->poll());
  EXPECT_FALSE(streams->complete(last));
  const CUstream second = make();
  EXPECT_NE(*streams->find(second), record);
  EXPECT_NE(*streams->find(stream), record) << "the handle may be another stream's by now";
  kernel.open();
  EXPECT_EQ((*driver)->cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_TRUE(poll());
  EXPECT_TRUE(streams->complete(last));
  const CUstream third = make();
  EXPECT_EQ(*streams->find(third), record);
  EXPECT_GT(record->open_stamp().epoch(), last.epoch()) << "no new use looks like an old one";
  EXPECT_TRUE(streams->close_stream(reinterpret_cast<CUstream>(0xdead0))) << "a stream vmem has not seen is ignored";
  for (const CUstream each : {stream, second, third}) (void)(*driver)->cuStreamDestroy(each);
}

TEST_F(Streams, TheDefaultStreamIsTheContextsByEitherName) {
  StreamRecord* const legacy = *streams->find(nullptr);
  EXPECT_EQ(*streams->find(CU_STREAM_LEGACY), legacy);
  EXPECT_EQ(*streams->find(nullptr, contexts[0].context()), legacy);
  EXPECT_NE(*streams->find(CU_STREAM_PER_THREAD), legacy);
  StreamRecord* elsewhere = nullptr;
  std::thread([&] { elsewhere = *streams->find(nullptr); }).join();
  EXPECT_EQ(elsewhere, legacy) << "a thread without a context means the first device's";
}

TEST_F(Streams, APerThreadStreamIsItsThreadsAlone) {
  StreamRecord* const mine = *streams->find(CU_STREAM_PER_THREAD);
  EXPECT_EQ(*streams->find(CU_STREAM_PER_THREAD), mine);
  StreamRecord* other = nullptr;
  std::thread([&] {
    EXPECT_EQ((*driver)->cuCtxSetCurrent(contexts[0].context()), CUDA_SUCCESS);
    other = *streams->find(CU_STREAM_PER_THREAD);
    const Stamp use = other->open_stamp();
    EXPECT_TRUE(streams->count_use(*other));
    EXPECT_TRUE(*streams->cover(use)) << "each use on it is covered at once";
  }).join();
  EXPECT_NE(other, mine);
  const Stamp open = other->open_stamp();
  EXPECT_FALSE(*streams->cover(open)) << "an event recorded here would be on this thread's stream";
  EXPECT_EQ(other->open_stamp(), open);
}

TEST_F(Streams, AnyThreadMayAskWhetherWorkIsComplete) {
  Actor& a = actor();
  const Stamp used = a.record->open_stamp();
  EXPECT_FALSE(streams->query(used)) << "no event tells yet";
  ASSERT_TRUE(streams->close_epoch(*a.record));
  EXPECT_EQ((*driver)->cuStreamSynchronize(a.stream), CUDA_SUCCESS);
  EXPECT_FALSE(streams->complete(used)) << "nobody has asked the driver";
  {
    const std::lock_guard somebody(a.record->mutex);
    std::thread([&] { EXPECT_FALSE(streams->query(used)) << "whoever is at it is not waited for"; }).join();
  }
  std::thread([&] { EXPECT_TRUE(streams->query(used)); }).join();
  EXPECT_TRUE(streams->complete(used));
  EXPECT_TRUE(*streams->poll()) << "the mover has not seen this progress";
  EXPECT_FALSE(*streams->poll());
}

TEST_F(Streams, UntrackedWorkIsReportedOnceForEachEpoch) {
  Actor& a = actor();
  std::vector<Stamp> seen;
  const auto take = [&] {
    seen.clear();
    streams->take_untracked([&](Stamp use) { seen.push_back(use); });
    return seen;
  };
  EXPECT_EQ(take(), std::vector<Stamp>{});
  const Stamp first = a.record->open_stamp();
  a.record->note_untracked();
  a.record->note_untracked();
  EXPECT_EQ(take(), std::vector<Stamp>{first});
  a.record->note_untracked();
  EXPECT_EQ(take(), std::vector<Stamp>{}) << "whoever knows of the epoch waits for all of it";
  ASSERT_TRUE(streams->close_epoch(*a.record));
  EXPECT_EQ(take(), std::vector<Stamp>{});
  a.record->note_untracked();
  EXPECT_EQ(take(), std::vector<Stamp>{a.record->open_stamp()});
}

TEST_F(Streams, AClosedStreamIsNotTouchedAgain) {
  Actor& a = actor();
  const Stamp open_when_closed = a.record->open_stamp();
  ASSERT_TRUE(streams->close_stream(a.stream));
  const Stamp after = a.record->open_stamp();  // a use after the close
  const std::uint64_t asked = faults->calls("cuStreamIsCapturing"), recorded = faults->calls("cuEventRecord");
  EXPECT_TRUE(*streams->cover(open_when_closed)) << "by the event of the close";
  EXPECT_FALSE(*streams->cover(after));
  EXPECT_TRUE(streams->close_stream(a.stream)) << "nobody knows it any more";
  EXPECT_EQ(faults->calls("cuStreamIsCapturing"), asked);
  EXPECT_EQ(faults->calls("cuEventRecord"), recorded);
}

TEST_F(Streams, StreamsThatCameAndWentLeaveOneRecordBehind) {
  std::set<StreamRecord*> records;
  for (int i = 0; i < 100; ++i) {
    CUstream stream = make();
    StreamRecord* const record = *streams->find(stream);
    records.insert(record);
    ASSERT_TRUE(streams->close_epoch(*record));
    if (i % 2 == 0) {
      EXPECT_EQ((*driver)->cuStreamSynchronize(stream), CUDA_SUCCESS);
      poll();  // before the close, so that the close need not wait
    }
    ASSERT_TRUE(streams->close_stream(stream));
    EXPECT_TRUE(streams->backlog()) << "or nobody would look";
    EXPECT_EQ((*driver)->cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ((*driver)->cuStreamDestroy(stream), CUDA_SUCCESS);
    poll();
  }
  EXPECT_EQ(records.size(), 1u);
}

TEST_F(Streams, AUseOnACapturingStreamIsNoFailure) {
  Actor& a = actor();
  ASSERT_EQ((*driver)->cuStreamBeginCapture(a.stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  for (std::uint32_t i = 0; i < 2 * StreamTable::kUsesPerEpoch; ++i) EXPECT_TRUE(streams->count_use(*a.record));
  CUgraph graph = nullptr;
  ASSERT_EQ((*driver)->cuStreamEndCapture(a.stream, &graph), CUDA_SUCCESS);
  (void)(*driver)->cuGraphDestroy(graph);
}

TEST_F(Streams, ThreadsThatCameAndWentLeaveOneRecordBehind) {
  std::set<StreamRecord*> records;
  for (int i = 0; i < 100; ++i) {
    std::thread([&] {
      EXPECT_EQ((*driver)->cuCtxSetCurrent(contexts[0].context()), CUDA_SUCCESS);
      StreamRecord* const record = *streams->find(CU_STREAM_PER_THREAD);
      records.insert(record);
      const Stamp use = record->open_stamp();
      EXPECT_TRUE(streams->count_use(*record));
      EXPECT_EQ((*driver)->cuStreamSynchronize(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
      EXPECT_TRUE(poll());
      EXPECT_TRUE(streams->complete(use));
    }).join();
  }
  EXPECT_EQ(records.size(), 1u);
}

// An old lookup must not find a record that was closed and now serves another thread.
TEST_F(Streams, AThreadThatClosedItsPerThreadStreamDoesNotFindAnothersUnderIt) {
  StreamRecord* const mine = *streams->find(CU_STREAM_PER_THREAD);
  ASSERT_TRUE(streams->close_stream(CU_STREAM_PER_THREAD));
  EXPECT_EQ((*driver)->cuStreamSynchronize(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  EXPECT_TRUE(poll());
  StreamRecord* other = nullptr;
  std::thread([&] {
    EXPECT_EQ((*driver)->cuCtxSetCurrent(contexts[0].context()), CUDA_SUCCESS);
    other = *streams->find(CU_STREAM_PER_THREAD);
  }).join();
  ASSERT_EQ(other, mine) << "reused";
  EXPECT_NE(*streams->find(CU_STREAM_PER_THREAD), other);
}

TEST_F(Streams, ACaptureIsNotDisturbed) {
  Actor& a = actor();
  Region& region = allocate(1);
  write(a, writing(region, 0), 1);
  const Stamp used = a.record->open_stamp();
  CUgraph graph = nullptr;
  ASSERT_EQ((*driver)->cuStreamBeginCapture(a.stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  const std::uint64_t records = faults->calls("cuEventRecord");
  evict(reading(region, 0));
  steps();
  EXPECT_EQ(faults->calls("cuEventRecord"), records) << "it would become a node of the graph";
  EXPECT_EQ(streams->close_epoch(*a.record).error().status, VMEM_ERROR_UNSUPPORTED);
  EXPECT_FALSE(*streams->cover(used));
  EXPECT_TRUE(in_hbm(region, 0)) << "nobody knows yet whether its use is complete";
  ASSERT_EQ((*driver)->cuStreamEndCapture(a.stream, &graph), CUDA_SUCCESS);
  (void)(*driver)->cuGraphDestroy(graph);
  finish_work(a);
  evict(reading(region, 0));
  EXPECT_FALSE(in_hbm(region, 0));
  expect_bytes(a, region, 0, 1);
}

TEST_F(Streams, AnEventThatSlippedIntoACaptureIsReplaced) {
  Actor& a = actor();
  const Stamp used = a.record->open_stamp();
  bool began = false;
  faults->on_call([&](std::string_view call) {
    if (call != "cuEventRecord" || began) return;
    began = true;
    EXPECT_EQ((*driver)->cuStreamBeginCapture(a.stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  });
  EXPECT_FALSE(*streams->cover(used));
  faults->on_call(nullptr);
  const std::uint64_t events = faults->calls("cuEventCreate");
  EXPECT_TRUE(streams->poll());
  EXPECT_FALSE(streams->complete(used));
  CUgraph graph = nullptr;
  ASSERT_EQ((*driver)->cuStreamEndCapture(a.stream, &graph), CUDA_SUCCESS);
  (void)(*driver)->cuGraphDestroy(graph);
  EXPECT_TRUE(*streams->cover(used));
  EXPECT_EQ(faults->calls("cuEventCreate"), events) << "the same event serves again";
  EXPECT_EQ((*driver)->cuStreamSynchronize(a.stream), CUDA_SUCCESS);
  poll();
  EXPECT_TRUE(streams->complete(used));
}

// A capture begins before the event is recorded and ends before the stream is asked for it.
TEST_F(Streams, AnEventThatIsInAnEndedCaptureIsReplaced) {
  Actor& a = actor();
  const Stamp used = a.record->open_stamp();
  bool began = false;
  CUgraph graph = nullptr;
  faults->on_call([&](std::string_view call) {
    if (call == "cuEventRecord" && !began) {
      began = true;
      EXPECT_EQ((*driver)->cuStreamBeginCapture(a.stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    } else if (call == "cuStreamIsCapturing" && began && graph == nullptr) {
      EXPECT_EQ((*driver)->cuStreamEndCapture(a.stream, &graph), CUDA_SUCCESS);
    }
  });
  EXPECT_TRUE(*streams->cover(used)) << "nobody saw the capture";
  faults->on_call(nullptr);
  ASSERT_NE(graph, nullptr);
  (void)(*driver)->cuGraphDestroy(graph);
  const std::uint64_t events = faults->calls("cuEventCreate");
  ASSERT_TRUE(streams->poll());
  EXPECT_FALSE(streams->complete(used));
  EXPECT_TRUE(*streams->cover(used));
  EXPECT_EQ(faults->calls("cuEventCreate"), events) << "the same event serves again";
  EXPECT_EQ((*driver)->cuStreamSynchronize(a.stream), CUDA_SUCCESS);
  ASSERT_TRUE(poll());
  EXPECT_TRUE(streams->complete(used));
}

TEST_F(Streams, AnEventThatCannotBeRecordedLeavesTheEpochToTheNext) {
  Actor& a = actor();
  const Stamp used = a.record->open_stamp();
  faults->fail_nth("cuEventRecord", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(streams->close_epoch(*a.record));
  EXPECT_TRUE(*streams->cover(used));
  EXPECT_EQ((*driver)->cuStreamSynchronize(a.stream), CUDA_SUCCESS);
  poll();
  EXPECT_TRUE(streams->complete(used));
}

// A thread wants an event for a stream. Before it has it, others close the stream and open one of
// another device, which gets the same record. The event must not be taken for that device's.
class StreamsOfTwoDevices : public Streams {
 protected:
  void SetUp() override { start({.devices = 2}); }
  CUstream make_on(int device) {
    EXPECT_EQ((*driver)->cuCtxPushCurrent(contexts[std::size_t(device)].context()), CUDA_SUCCESS);
    const CUstream stream = make();
    CUcontext popped = nullptr;
    EXPECT_EQ((*driver)->cuCtxPopCurrent(&popped), CUDA_SUCCESS);
    return stream;
  }
  // At the next cuEventCreate.
  void replace_meanwhile(CUstream first, CUstream second, StreamRecord* record) {
    replaced_ = false;
    faults->on_call([this, first, second, record](std::string_view call) {
      if (call != "cuEventCreate" || std::exchange(replaced_, true)) return;
      EXPECT_TRUE(streams->close_stream(first));
      EXPECT_EQ((*driver)->cuStreamSynchronize(first), CUDA_SUCCESS);
      EXPECT_TRUE(streams->poll());
      EXPECT_EQ(*streams->find(second), record);
    });
  }
  void expect_sound(StreamRecord& record, CUstream second) {
    faults->on_call(nullptr);
    ASSERT_TRUE(replaced_);
    for (int i = 0; i < 4; ++i) {
      const auto closed = streams->close_epoch(record);
      EXPECT_TRUE(closed) << closed.error().message;
    }
    const Stamp last = record.open_stamp();
    EXPECT_TRUE(*streams->cover(last));
    EXPECT_EQ((*driver)->cuStreamSynchronize(second), CUDA_SUCCESS);
    EXPECT_TRUE(streams->poll());
    EXPECT_TRUE(streams->complete(last));
    EXPECT_TRUE(streams->close_stream(second));
  }

 private:
  bool replaced_ = false;
};

TEST_F(StreamsOfTwoDevices, AnEventForAStreamThatWasReplacedIsNotRecordedOnTheOther) {
  const CUstream first = make_on(0), second = make_on(1);
  StreamRecord* const record = *streams->find(first);
  replace_meanwhile(first, second, record);
  const auto closed = streams->close_epoch(*record);
  EXPECT_TRUE(closed || closed.error().status == VMEM_ERROR_UNSUPPORTED) << closed.error().message;
  expect_sound(*record, second);
}

TEST_F(StreamsOfTwoDevices, AStreamThatTwoThreadsCloseLeavesNoEventToAnotherDevice) {
  const CUstream first = make_on(0), second = make_on(1);
  StreamRecord* const record = *streams->find(first);
  replace_meanwhile(first, second, record);
  EXPECT_TRUE(streams->close_stream(first));
  expect_sound(*record, second);
}

// The program's pause between two epochs is no time of the GPU's.
TEST_F(Streams, AnEpochIsTimedFromItsFirstLaunch) {
  StreamTable timed(driver, {{0, contexts[0].context()}}, StreamTable::Timing::on);
  const CUstream stream = make();
  StreamRecord& record = **timed.find(stream);
  const auto end_of_epoch = [&] {
    EXPECT_TRUE(timed.close_epoch(record));
    EXPECT_EQ((*driver)->cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_TRUE(*timed.poll());
    std::vector<StreamTable::EpochTime> times;
    timed.take_timings([&](const StreamTable::EpochTime& time) { times.push_back(time); });
    EXPECT_EQ(times.size(), 1u);
    return times.empty() ? StreamTable::EpochTime{} : times.front();
  };
  const StreamTable::EpochTime first = end_of_epoch();
  EXPECT_EQ(first.gpu_ns, 0u) << "nothing tells when it began";
  constexpr std::uint64_t kPauseNs = 50'000'000;
  const std::uint64_t from_ns = SteadyClock::now_ns();
  while (SteadyClock::now_ns() - from_ns < kPauseNs) std::this_thread::yield();
  const std::uint64_t begins_ns = SteadyClock::now_ns();
  timed.time_launch(record);
  ASSERT_TRUE(record.has_begin.load());
  // The begin's event has happened once work behind it has.
  std::atomic<bool> ran{false};
  enqueue(*driver, stream, [&] { ran = true; });
  while (!ran) std::this_thread::yield();
  const std::uint64_t runs_ns = SteadyClock::now_ns();
  timed.time_launch(record);  // the epoch has begun
  while (SteadyClock::now_ns() - runs_ns < kPauseNs / 10) std::this_thread::yield();
  const std::uint64_t waited_ns = SteadyClock::now_ns() - runs_ns;
  const StreamTable::EpochTime second = end_of_epoch();
  EXPECT_LE(second.gpu_ns, SteadyClock::now_ns() - begins_ns);
  EXPECT_GE(second.gpu_ns, waited_ns / 2) << "from the first launch, not from the last";
  const StreamTable::EpochTime third = end_of_epoch();
  EXPECT_LE(third.gpu_ns, third.seen_ns - begins_ns) << "without launches, since the epoch before";
}

TEST_F(Streams, AnEpochIsNotTimedInsideACapture) {
  StreamTable timed(driver, {{0, contexts[0].context()}}, StreamTable::Timing::on);
  const CUstream stream = make();
  StreamRecord& record = **timed.find(stream);
  ASSERT_EQ((*driver)->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  timed.time_launch(record);
  EXPECT_FALSE(record.has_begin.load());
  CUgraph graph = nullptr;
  ASSERT_EQ((*driver)->cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  EXPECT_EQ((*driver)->cuGraphDestroy(graph), CUDA_SUCCESS);
  timed.time_launch(record);
  EXPECT_TRUE(record.has_begin.load());
  ASSERT_TRUE(timed.close_stream(stream));
  EXPECT_FALSE(record.has_begin.load());
}

TEST_F(Streams, ManyEventsWaitingAskForAPoll) {
  Actor& a = actor();
  int asked = 0;
  streams->on_backlog([&] { ++asked; });
  Gate kernel = gate(a);
  for (int i = 0; i < 63; ++i) ASSERT_TRUE(streams->close_epoch(*a.record));
  EXPECT_EQ(asked, 0);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(streams->close_epoch(*a.record));
  EXPECT_EQ(asked, 1) << "once until the poll";
  EXPECT_TRUE(streams->backlog());
  kernel.open();
  EXPECT_EQ((*driver)->cuStreamSynchronize(a.stream), CUDA_SUCCESS);
  poll();
  EXPECT_FALSE(streams->backlog());
}

}  // namespace
}  // namespace vmem::migration
