// Stream writes to memory and waits for it, and the results of stream and event calls. The runs
// have 64 MiB of HBM.
#include <algorithm>
#include <atomic>

#include "intercept/program.hpp"

namespace vmem::test {
namespace {

// One stream waits for words in vmem's memory, in a small and in a large allocation. Another works
// through more memory than HBM holds, and then writes the words.
void wait_under_pressure(std::size_t bytes) {
  const Machine machine;
  const CUfunction add = machine.function("add");
  const Stream waiting;
  Buffers buffers(10);
  CUdeviceptr words = 0, result = 0;
  CALL(cuMemAllocAsync(&words, bytes, buffers.stream));
  CALL(cuMemAllocAsync(&result, kBytes, buffers.stream));
  CALL(cuMemsetD32Async(words, 0, bytes / sizeof(unsigned), buffers.stream));
  CALL(cuMemsetD32Async(result, 1, kWords, buffers.stream));
  CALL(cuStreamSynchronize(buffers.stream));
  for (unsigned round = 1; round <= 3; ++round) {
    const CUdeviceptr first = words + 64, second = words + 128;
    CALL(cuStreamWaitValue32(waiting.handle, first, round, CU_STREAM_WAIT_VALUE_GEQ));
    CALL(cuStreamWaitValue64(waiting.handle, second, std::uint64_t{round} << 40, CU_STREAM_WAIT_VALUE_EQ));
    std::size_t count = kWords;
    launch(add, waiting.handle, {&result, &count});
    buffers.work(add);
    CALL(cuStreamSynchronize(buffers.stream));
    REQUIRE(cuStreamQuery(waiting.handle) == CUDA_ERROR_NOT_READY);
    CALL(cuStreamWriteValue32(buffers.stream, first, round, CU_STREAM_WRITE_VALUE_DEFAULT));
    CALL(cuStreamSynchronize(buffers.stream));
    REQUIRE(cuStreamQuery(waiting.handle) == CUDA_ERROR_NOT_READY);
    CALL(cuStreamWriteValue64(buffers.stream, second, std::uint64_t{round} << 40, CU_STREAM_WRITE_VALUE_DEFAULT));
    CALL(cuStreamSynchronize(waiting.handle));
    REQUIRE(read(result, 1, waiting.handle)[0] == 1 + round);
  }
  const auto data = read(words, 64, buffers.stream);
  REQUIRE(data[16] == 3 && data[32] == 0 && data[33] == 3 << 8);
  for (std::size_t i = 0; i < buffers.at.size(); ++i) REQUIRE(read(buffers.at[i], 1, buffers.stream)[0] == i + 3);
}

CASE(streams_wait_for_small_allocations) { wait_under_pressure(1024); }
// One stream waits for the other's kernel; a capture's events are no order of work.
CASE(streams_wait_for_events) {
  const Machine machine;
  const CUfunction add = machine.function("add");
  const Stream waiting;
  Buffers buffers(10);
  std::size_t count = kWords;
  CUevent event = nullptr;
  CALL(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  for (int round = 0; round < 3; ++round) {
    launch(add, buffers.stream, {&buffers.at[0], &count});
    CALL(round == 1 ? cuEventRecordWithFlags(event, buffers.stream, CU_EVENT_RECORD_DEFAULT)
                    : cuEventRecord(event, buffers.stream));
    CALL(cuStreamWaitEvent(waiting.handle, event, 0));
    launch(add, waiting.handle, {&buffers.at[0], &count});
    CALL(cuStreamSynchronize(waiting.handle));
  }
  CUgraph graph = nullptr;
  CALL(cuStreamBeginCapture(waiting.handle, CU_STREAM_CAPTURE_MODE_RELAXED));
  CALL(cuEventRecord(event, waiting.handle));
  CALL(cuStreamEndCapture(waiting.handle, &graph));
  CALL(cuGraphDestroy(graph));
  CALL(cuEventDestroy(event));
  const std::vector<unsigned> words = read(buffers.at[0], 1, waiting.handle);
  REQUIRE(words[0] >= 6);
}

CASE(streams_wait_for_large_allocations) { wait_under_pressure(kBytes); }

// The target of a queued stream write is resident when the write runs, whatever else needed room
// since.
CASE(streams_write_under_pressure) {
  const Machine machine;
  const CUfunction add = machine.function("add");
  const Stream writing;
  Buffers buffers(10);
  std::atomic<bool> may_go{false};
  const auto wait = [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); };
  CALL(cuStreamSynchronize(buffers.stream));
  const CUdeviceptr word = buffers.at[0] + kMiB;
  CALL(cuLaunchHostFunc(writing.handle, wait, &may_go));
  CALL(cuStreamWriteValue32(writing.handle, word, 77, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER));
  for (std::size_t round = 0; round < 3; ++round) {
    for (std::size_t i = 1; i < buffers.at.size(); ++i) {
      std::size_t words = kWords;
      launch(add, buffers.stream, {&buffers.at[i], &words});
    }
  }
  CALL(cuStreamSynchronize(buffers.stream));
  may_go = true;
  may_go.notify_all();
  CALL(cuStreamSynchronize(writing.handle));
  REQUIRE(read(word, 1, buffers.stream)[0] == 77);
}

CUstreamBatchMemOpParams operation(CUstreamBatchMemOpType type, CUdeviceptr address, std::uint64_t value) {
  CUstreamBatchMemOpParams made{};
  made.operation = type;
  const bool wait = type == CU_STREAM_MEM_OP_WAIT_VALUE_32 || type == CU_STREAM_MEM_OP_WAIT_VALUE_64;
  if (wait) {
    made.waitValue.address = address;
    made.waitValue.value64 = value;
    made.waitValue.flags = CU_STREAM_WAIT_VALUE_AND;
  } else if (type != CU_STREAM_MEM_OP_BARRIER) {
    made.writeValue.address = address;
    made.writeValue.value64 = value;
  }
  return made;
}

// Both sides of an exchange between two streams, and between a stream and the CPU.
CASE(batches_of_stream_memory_operations) {
  const Machine machine;
  const CUfunction add = machine.function("add");
  const Stream one, other;
  Buffers buffers(10);
  void* pinned = nullptr;
  CALL(cuMemHostAlloc(&pinned, 4096, 0));
  std::fill_n(static_cast<unsigned*>(pinned), 1024, 0u);
  CUdeviceptr words = 0;
  CALL(cuMemAllocAsync(&words, kBytes, buffers.stream));
  CALL(cuMemsetD32Async(words, 0, kWords, buffers.stream));
  CALL(cuStreamSynchronize(buffers.stream));
  const auto cpu = reinterpret_cast<CUdeviceptr>(pinned);
  CUstreamBatchMemOpParams first[] = {
      operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, cpu, 1), operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, words, 2),
      operation(CU_STREAM_MEM_OP_BARRIER, 0, 0), operation(CU_STREAM_MEM_OP_WAIT_VALUE_64, words + 8, 4),
      operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, cpu + 4, 5)};
  CUstreamBatchMemOpParams second[] = {operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, words, 2),
                                       operation(CU_STREAM_MEM_OP_WRITE_VALUE_64, words + 8, 12)};
  CALL(cuStreamBatchMemOp(one.handle, 5, first, 0));
  CALL(cuStreamBatchMemOp(other.handle, 2, second, 0));
  buffers.work(add);
  CALL(cuStreamSynchronize(buffers.stream));
  REQUIRE(cuStreamQuery(one.handle) == CUDA_ERROR_NOT_READY && cuStreamQuery(other.handle) == CUDA_ERROR_NOT_READY);
  std::atomic_ref(static_cast<unsigned*>(pinned)[0]).store(1);
  CALL(cuStreamSynchronize(one.handle));
  CALL(cuStreamSynchronize(other.handle));
  REQUIRE(static_cast<unsigned*>(pinned)[1] == 5);
  const auto data = read(words, 4, buffers.stream);
  REQUIRE(data[0] == 2 && data[2] == 12);
  // Operations that the driver refuses.
  REQUIRE(cuStreamBatchMemOp(one.handle, 2, second, 1) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuStreamBatchMemOp(one.handle, 256, second, 0) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuStreamBatchMemOp(one.handle, 2, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuStreamWriteValue32(one.handle, words + 2, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuStreamWaitValue64(one.handle, words + 4, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuStreamWaitValue32(one.handle, words, 1, 4) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuStreamWaitValue32(one.handle, words, 1, CU_STREAM_WAIT_VALUE_FLUSH) == CUDA_ERROR_NOT_SUPPORTED);
  unsigned pageable = 0;
  REQUIRE(cuStreamWriteValue32(one.handle, reinterpret_cast<CUdeviceptr>(&pageable), 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CALL(cuMemFreeHost(pinned));
}

// The program gets the same results with and without vmem.
CASE(errors_are_the_drivers) {
  const Machine machine;
  const CUfunction add = machine.function("add");
  Buffers buffers(2);
  buffers.work(add);
  std::atomic<bool> may_go{false};
  const auto wait = [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); };
  const auto let_go = [&] {
    may_go = true;
    may_go.notify_all();
  };
  CUevent event = nullptr;
  CALL(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  // Never recorded, not yet complete, complete.
  CALL(cuEventQuery(event));
  CALL(cuEventSynchronize(event));
  CALL(cuLaunchHostFunc(buffers.stream, wait, &may_go));
  CALL(cuEventRecord(event, buffers.stream));
  REQUIRE(cuStreamQuery(buffers.stream) == CUDA_ERROR_NOT_READY);
  REQUIRE(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  let_go();
  CALL(cuEventSynchronize(event));
  CALL(cuEventQuery(event));
  CALL(cuStreamSynchronize(buffers.stream));
  CALL(cuStreamQuery(buffers.stream));
  // Invalid handles.
  CUevent gone = nullptr;
  CALL(cuEventCreate(&gone, CU_EVENT_DEFAULT));
  CALL(cuEventDestroy(gone));
  CUstream gone_stream = nullptr;
  CALL(cuStreamCreate(&gone_stream, CU_STREAM_NON_BLOCKING));
  CALL(cuStreamDestroy(gone_stream));
  REQUIRE(cuEventQuery(gone) == CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(cuEventSynchronize(gone) == CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(cuStreamQuery(gone_stream) == CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(cuStreamSynchronize(gone_stream) == CUDA_ERROR_INVALID_HANDLE);
  // A capturing stream cannot be queried.
  CALL(cuStreamBeginCapture(buffers.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  REQUIRE(cuStreamQuery(buffers.stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  REQUIRE(cuStreamSynchronize(buffers.stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  REQUIRE(cuStreamEndCapture(buffers.stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  // A sticky error: the program unmaps its own memory too early.
  may_go = false;
  const CUdeviceptr own = map_own(2 * kMiB);
  CALL(cuLaunchHostFunc(buffers.stream, wait, &may_go));
  CALL(cuMemcpyDtoDAsync(own, own + kMiB, 1024, buffers.stream));
  CALL(cuEventRecord(event, buffers.stream));
  CALL(cuMemUnmap(own, 2 * kMiB));
  let_go();
  REQUIRE(cuEventSynchronize(event) == CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE(cuEventQuery(event) == CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE(cuStreamSynchronize(buffers.stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE(cuStreamQuery(buffers.stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace
}  // namespace vmem::test
