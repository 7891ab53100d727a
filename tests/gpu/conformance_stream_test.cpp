// Order of streams, events and the default streams. Kernels that wait for a gate make every order
// visible without sleeping.
#include <thread>

#include "gpu/driver_fixture.hpp"

namespace vmem::gpu {
namespace {

class Streams : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    page.emplace(driver, granularity, device_memory(0, false));
    other = must(Stream::create(driver));
  }
  void TearDown() override {
    for (unsigned gate = 0; gate < 8; ++gate) open_gate(gate);
    (void)cu().cuCtxSynchronize();
    other.reset();
    page.reset();
    DriverTest::TearDown();
  }
  CUstream blocking_stream() {
    CUstream created = nullptr;
    EXPECT_CU(cu().cuStreamCreate(&created, CU_STREAM_DEFAULT));
    return created;
  }
  std::uint32_t first_word() { return read(page->address(), 1)[0]; }

  std::optional<Page> page;
  Stream other;
};

void CUDA_CB set_flag(void* flag) {
  std::atomic_ref(*static_cast<std::uint32_t*>(flag)).store(1, std::memory_order_release);
}

TEST_F(Streams, WorkOfOneStreamRunsInOrder) {
  EXPECT_CU(fill(*page, 1, stream.get()));
  for (int i = 0; i < 100; ++i)
    EXPECT_CU(launch(driver, kernel("add_words"), stream.get(), page->words(), 1u, std::uint64_t{64}));
  EXPECT_EQ(first_word(), 101u);
}

TEST_F(Streams, AStreamIsReadyOnceItsWorkIsDone) {
  EXPECT_CU(cu().cuStreamQuery(stream.get()));
  EXPECT_CU(close_gate(0, stream.get()));
  EXPECT_EQ(cu().cuStreamQuery(stream.get()), CUDA_ERROR_NOT_READY);
  open_gate(0);
  EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
  EXPECT_CU(cu().cuStreamQuery(stream.get()));
}

TEST_F(Streams, AnEventIsCompleteWhenTheWorkBeforeItIs) {
  const Event event = must(Event::create(driver));
  EXPECT_CU(close_gate(0, stream.get()));
  EXPECT_TRUE(event.record(stream.get()));
  EXPECT_FALSE(must(event.complete()));
  open_gate(0);
  EXPECT_TRUE(event.synchronize());
  EXPECT_TRUE(must(event.complete()));
}

TEST_F(Streams, AnEventNeverRecordedIsComplete) {
  const Event event = must(Event::create(driver));
  EXPECT_TRUE(must(event.complete()));
  EXPECT_CU(cu().cuStreamWaitEvent(stream.get(), event.get(), CU_EVENT_WAIT_DEFAULT));
  EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
}

TEST_F(Streams, AWaitHoldsBackLaterWorkOnly) {
  const Event event = must(Event::create(driver));
  EXPECT_CU(close_gate(0, other.get()));
  EXPECT_TRUE(event.record(other.get()));
  EXPECT_CU(fill(*page, 1, stream.get()));
  EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
  EXPECT_CU(cu().cuStreamWaitEvent(stream.get(), event.get(), CU_EVENT_WAIT_DEFAULT));
  EXPECT_CU(fill(*page, 2, stream.get()));
  EXPECT_EQ(cu().cuStreamQuery(stream.get()), CUDA_ERROR_NOT_READY);
  open_gate(0);
  EXPECT_EQ(first_word(), 2u);
}

TEST_F(Streams, AWaitRefersToTheRecordOfItsTime) {
  const Event event = must(Event::create(driver));
  EXPECT_CU(close_gate(0, other.get()));
  EXPECT_TRUE(event.record(other.get()));
  EXPECT_CU(cu().cuStreamWaitEvent(stream.get(), event.get(), CU_EVENT_WAIT_DEFAULT));
  EXPECT_CU(close_gate(1, other.get()));
  EXPECT_TRUE(event.record(other.get()));
  open_gate(0);
  EXPECT_CU(cu().cuStreamSynchronize(stream.get()));  // gate 1 is still closed
  EXPECT_FALSE(must(event.complete()));
}

TEST_F(Streams, AnEventOutlivesItsHandleForThoseWhoWait) {
  Event event = must(Event::create(driver));
  EXPECT_CU(close_gate(0, other.get()));
  EXPECT_TRUE(event.record(other.get()));
  EXPECT_CU(cu().cuStreamWaitEvent(stream.get(), event.get(), CU_EVENT_WAIT_DEFAULT));
  event.reset();
  EXPECT_EQ(cu().cuStreamQuery(stream.get()), CUDA_ERROR_NOT_READY);
  open_gate(0);
  EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
}

TEST_F(Streams, ElapsedTimeCoversTheWorkBetween) {
  const Event start = must(Event::create(driver, Timing::on)), end = must(Event::create(driver, Timing::on));
  float milliseconds = -1;
  EXPECT_TRUE(start.record(stream.get()));
  EXPECT_CU(close_gate(0, stream.get()));
  EXPECT_TRUE(end.record(stream.get()));
  EXPECT_EQ(cu().cuEventElapsedTime(&milliseconds, start.get(), end.get()), CUDA_ERROR_NOT_READY);
  open_gate(0);
  EXPECT_TRUE(end.synchronize());
  EXPECT_CU(cu().cuEventElapsedTime(&milliseconds, start.get(), end.get()));
  EXPECT_GT(milliseconds, 0);
}

TEST_F(Streams, EventsWithoutTimingHaveNoElapsedTime) {
  const Event start = must(Event::create(driver)), end = must(Event::create(driver));
  float milliseconds = 0;
  EXPECT_TRUE(start.record(stream.get()));
  EXPECT_TRUE(end.record(stream.get()));
  EXPECT_TRUE(end.synchronize());
  EXPECT_EQ(cu().cuEventElapsedTime(&milliseconds, start.get(), end.get()), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(Streams, ADestroyedStreamFinishesItsWork) {
  const Event event = must(Event::create(driver));
  EXPECT_CU(close_gate(0, other.get()));
  EXPECT_CU(fill(*page, 8, other.get()));
  EXPECT_TRUE(event.record(other.get()));
  other.reset();
  open_gate(0);
  EXPECT_TRUE(event.synchronize());
  EXPECT_EQ(first_word(), 8u);
}

TEST_F(Streams, AHostFunctionRunsInStreamOrder) {
  constexpr unsigned done = 1;
  EXPECT_CU(close_gate(0, stream.get()));
  EXPECT_CU(cu().cuLaunchHostFunc(stream.get(), set_flag, flags() + done));
  EXPECT_FALSE(is_set(done));
  open_gate(0);
  EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
  EXPECT_TRUE(is_set(done));
}

TEST_F(Streams, NonBlockingStreamsIgnoreTheLegacyStream) {
  EXPECT_CU(close_gate(0, CU_STREAM_LEGACY));
  EXPECT_CU(fill(*page, 1, stream.get()));
  EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
  open_gate(0);
}

TEST_F(Streams, BlockingStreamsWaitForTheLegacyStream) {
  CUstream blocking = blocking_stream();
  EXPECT_CU(close_gate(0, nullptr));
  EXPECT_CU(fill(*page, 1, blocking));
  EXPECT_EQ(cu().cuStreamQuery(blocking), CUDA_ERROR_NOT_READY);
  open_gate(0);
  EXPECT_CU(cu().cuStreamSynchronize(blocking));
  EXPECT_CU(cu().cuStreamDestroy(blocking));
}

TEST_F(Streams, TheLegacyStreamWaitsForBlockingStreams) {
  CUstream blocking = blocking_stream();
  EXPECT_CU(close_gate(0, blocking));
  EXPECT_CU(fill(*page, 1, CU_STREAM_LEGACY));
  EXPECT_EQ(cu().cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
  open_gate(0);
  EXPECT_CU(cu().cuStreamSynchronize(CU_STREAM_LEGACY));
  EXPECT_CU(cu().cuStreamDestroy(blocking));
}

TEST_F(Streams, EveryThreadHasAStreamOfItsOwn) {
  ASSERT_NE(cu().cuStreamGetId, nullptr);
  unsigned long long here = 0, there = 0;
  EXPECT_CU(cu().cuStreamGetId(CU_STREAM_PER_THREAD, &here));
  std::thread([&] {
    EXPECT_CU(cu().cuCtxSetCurrent(context.context()));
    EXPECT_CU(cu().cuStreamGetId(CU_STREAM_PER_THREAD, &there));
  }).join();
  EXPECT_NE(here, there);
}

TEST_F(Streams, SynchronisingTheContextWaitsForAllStreams) {
  EXPECT_CU(close_gate(0, stream.get()));
  EXPECT_CU(close_gate(1, other.get()));
  std::thread opener([&] {
    open_gate(0);
    open_gate(1);
  });
  EXPECT_CU(cu().cuCtxSynchronize());
  EXPECT_CU(cu().cuStreamQuery(stream.get()));
  EXPECT_CU(cu().cuStreamQuery(other.get()));
  opener.join();
}

TEST_F(Streams, AStreamKnowsItsContext) {
  CUcontext found = nullptr;
  EXPECT_CU(cu().cuStreamGetCtx(stream.get(), &found));
  EXPECT_EQ(found, context.context());
}

TEST_F(Streams, WorkFromManyThreadsAllRuns) {
  constexpr int threads = 4, launches = 200;
  EXPECT_CU(fill(*page, 0, stream.get()));
  std::vector<std::thread> launchers;
  for (int t = 0; t < threads; ++t)
    launchers.emplace_back([&] {
      EXPECT_CU(cu().cuCtxSetCurrent(context.context()));
      for (int i = 0; i < launches; ++i)
        EXPECT_CU(launch(driver, kernel("add_words"), stream.get(), page->words(), 1u, std::uint64_t{1}));
    });
  for (auto& launcher : launchers) launcher.join();
  EXPECT_EQ(first_word(), std::uint32_t{threads * launches});
}

TEST_F(Streams, UnknownKernelsAreNotFound) {
  const auto function = kernels.function("no_such_kernel");
  ASSERT_FALSE(function);
  EXPECT_EQ(function.error().native, CUDA_ERROR_NOT_FOUND);
  EXPECT_NE(function.error().message.find("no_such_kernel"), std::string::npos);
}

TEST_F(Streams, ParametersCanComeInABuffer) {
  struct {
    std::uint32_t* words;
    std::uint32_t value;
    std::uint64_t count;
  } buffer{page->words(), 31, 4};
  std::size_t bytes = sizeof buffer;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  EXPECT_CU(cu().cuLaunchKernel(kernel("fill_words"), 1, 1, 1, 32, 1, 1, 0, stream.get(), nullptr, extra));
  EXPECT_EQ(first_word(), 31u);
}

}  // namespace
}  // namespace vmem::gpu
