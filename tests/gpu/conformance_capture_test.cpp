// Stream capture, as it affects a program that shares its process with capturing code.
#include <thread>

#include "gpu/driver_fixture.hpp"

namespace vmem::gpu {
namespace {

class Capture : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    page.emplace(driver, granularity, device_memory(0, false));
    EXPECT_CU(fill(*page, 1, stream.get()));
    EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
  }
  void TearDown() override {
    (void)cu().cuCtxSynchronize();
    page.reset();
    DriverTest::TearDown();
  }
  CUresult begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    return cu().cuStreamBeginCapture(stream.get(), mode);
  }
  // Ends the capture, destroys the graph and returns the result of the end.
  CUresult end() {
    CUgraph graph = nullptr;
    const CUresult result = cu().cuStreamEndCapture(stream.get(), &graph);
    if (graph) {
      EXPECT_CU(cu().cuGraphDestroy(graph));
    }
    return result;
  }
  CUstreamCaptureStatus status() {
    CUstreamCaptureStatus result = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_CU(cu().cuStreamIsCapturing(stream.get(), &result));
    return result;
  }
  // Runs `work` on another thread of the same context.
  template <class Work>
  void elsewhere(Work work) {
    std::thread([&] {
      EXPECT_CU(cu().cuCtxSetCurrent(context.context()));
      work();
    }).join();
  }
  std::optional<Page> page;
};

TEST_F(Capture, CapturedWorkDoesNotRun) {
  ASSERT_CU(begin());
  EXPECT_EQ(status(), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_CU(fill(*page, 2, stream.get()));
  EXPECT_CU(end());
  EXPECT_EQ(status(), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_TRUE(holds(*page, 1));
}

TEST_F(Capture, AnEventQueryElsewhereEndsAGlobalCapture) {
  const Event event = must(Event::create(driver));
  ASSERT_CU(begin());
  elsewhere([&] { EXPECT_EQ(cu().cuEventQuery(event.get()), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); });
  EXPECT_EQ(status(), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(Capture, SynchronisingAnotherStreamElsewhereEndsAGlobalCapture) {
  const Stream other = must(Stream::create(driver));
  ASSERT_CU(begin());
  elsewhere([&] { EXPECT_EQ(cu().cuStreamSynchronize(other.get()), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); });
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(Capture, ARelaxedThreadLeavesGlobalCapturesAlone) {
  const Event event = must(Event::create(driver));
  const Stream other = must(Stream::create(driver));
  ASSERT_CU(begin());
  elsewhere([&] {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    EXPECT_CU(cu().cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_CU(fill(*page, 3, other.get()));
    EXPECT_TRUE(event.record(other.get()));
    EXPECT_TRUE(event.synchronize());
    EXPECT_TRUE(must(event.complete()));
    EXPECT_TRUE(other.synchronize());
  });
  EXPECT_CU(end());
}

TEST_F(Capture, OtherThreadsMayQueryDuringAThreadLocalCapture) {
  const Event event = must(Event::create(driver));
  ASSERT_CU(begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  elsewhere([&] { EXPECT_CU(cu().cuEventQuery(event.get())); });
  EXPECT_CU(end());
}

TEST_F(Capture, TheCapturingThreadMayQueryDuringARelaxedCapture) {
  const Event event = must(Event::create(driver));
  ASSERT_CU(begin(CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_CU(cu().cuEventQuery(event.get()));
  EXPECT_CU(end());
}

TEST_F(Capture, MappingDuringACaptureIsAllowedInARelaxedThread) {
  ASSERT_CU(begin());
  elsewhere([&] {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    EXPECT_CU(cu().cuThreadExchangeStreamCaptureMode(&mode));
    const Page other(driver, granularity, device_memory(0, false));
    EXPECT_CU(other.set_access(CU_MEM_ACCESS_FLAGS_PROT_READ));
  });
  EXPECT_CU(end());
}

TEST_F(Capture, SynchronisingTheCapturingStreamEndsTheCapture) {
  ASSERT_CU(begin(CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(cu().cuStreamSynchronize(stream.get()), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(Capture, AskingAboutACapturedEventEndsTheCapture) {
  const Event event = must(Event::create(driver));
  ASSERT_CU(begin(CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_TRUE(event.record(stream.get()));
  EXPECT_EQ(cu().cuEventQuery(event.get()), CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(Capture, AnEventRecordedInACaptureHasNoAnswerAfterIt) {
  const Event event = must(Event::create(driver));
  ASSERT_CU(begin());
  elsewhere([&] { EXPECT_TRUE(event.record(stream.get())); });
  EXPECT_EQ(status(), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_CU(end());
  EXPECT_EQ(cu().cuEventQuery(event.get()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(event.record(stream.get()));
  EXPECT_TRUE(event.synchronize());
}

TEST_F(Capture, WorkOnOtherStreamsGoesOnDuringAGlobalCapture) {
  ASSERT_CU(begin());
  elsewhere([&] {
    const Stream other = must(Stream::create(driver));
    const Event event = must(Event::create(driver));
    EXPECT_CU(fill(*page, 4, other.get()));
    EXPECT_TRUE(event.record(other.get()));
    EXPECT_CU(cu().cuStreamWaitEvent(other.get(), event.get(), CU_EVENT_WAIT_DEFAULT));
    const Page mapped(driver, granularity, device_memory(0, false));
  });
  EXPECT_CU(end());
}

TEST_F(Capture, AllocationElsewhereEndsAGlobalCapture) {
  CUdeviceptr address = 0;
  ASSERT_CU(begin());
  elsewhere([&] { EXPECT_EQ(cu().cuMemAlloc(&address, 4096), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); });
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(Capture, AskingWhetherTheLegacyStreamCapturesHarmsNobody) {
  CUstream blocking = nullptr;
  ASSERT_CU(cu().cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  ASSERT_CU(cu().cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUstreamCaptureStatus legacy{};
  EXPECT_EQ(cu().cuStreamIsCapturing(CU_STREAM_LEGACY, &legacy), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CUgraph graph = nullptr;
  EXPECT_CU(cu().cuStreamEndCapture(blocking, &graph));
  EXPECT_CU(cu().cuGraphDestroy(graph));
  EXPECT_CU(cu().cuStreamDestroy(blocking));
}

TEST_F(Capture, WaitingForWorkOutsideEndsTheCapture) {
  const Stream other = must(Stream::create(driver));
  const Event event = must(Event::create(driver));
  EXPECT_CU(close_gate(0, other.get()));
  EXPECT_TRUE(event.record(other.get()));
  ASSERT_CU(begin());
  EXPECT_EQ(cu().cuStreamWaitEvent(stream.get(), event.get(), CU_EVENT_WAIT_DEFAULT),
            CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  open_gate(0);
  EXPECT_CU(cu().cuStreamSynchronize(other.get()));
}

TEST_F(Capture, AStreamJoinsByWaitingAndIsJoinedBack) {
  const Stream other = must(Stream::create(driver));
  const Event fork = must(Event::create(driver)), join = must(Event::create(driver));
  ASSERT_CU(begin());
  EXPECT_TRUE(fork.record(stream.get()));
  EXPECT_CU(cu().cuStreamWaitEvent(other.get(), fork.get(), CU_EVENT_WAIT_DEFAULT));
  CUstreamCaptureStatus joined = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_CU(cu().cuStreamIsCapturing(other.get(), &joined));
  EXPECT_EQ(joined, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_CU(fill(*page, 2, other.get()));
  EXPECT_TRUE(join.record(other.get()));
  EXPECT_CU(cu().cuStreamWaitEvent(stream.get(), join.get(), CU_EVENT_WAIT_DEFAULT));
  EXPECT_CU(end());
  EXPECT_TRUE(holds(*page, 1));
}

TEST_F(Capture, WorkThatIsNotJoinedBackFailsTheCapture) {
  const Stream other = must(Stream::create(driver));
  const Event fork = must(Event::create(driver));
  ASSERT_CU(begin());
  EXPECT_TRUE(fork.record(stream.get()));
  EXPECT_CU(cu().cuStreamWaitEvent(other.get(), fork.get(), CU_EVENT_WAIT_DEFAULT));
  EXPECT_CU(fill(*page, 2, other.get()));
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
}

TEST_F(Capture, TheLegacyStreamCannotBeUsedWhileABlockingStreamCaptures) {
  CUstream blocking = nullptr;
  ASSERT_CU(cu().cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  ASSERT_CU(cu().cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(fill(*page, 2, CU_STREAM_LEGACY), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CUgraph graph = nullptr;
  EXPECT_EQ(cu().cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_CU(cu().cuStreamDestroy(blocking));
}

TEST_F(Capture, TheLegacyStreamCannotBeCaptured) {
  EXPECT_EQ(cu().cuStreamBeginCapture(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_RELAXED),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

TEST_F(Capture, OnlyItsThreadEndsAThreadLocalCapture) {
  ASSERT_CU(begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  elsewhere([&] { EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD); });
  (void)end();
}

}  // namespace
}  // namespace vmem::gpu
