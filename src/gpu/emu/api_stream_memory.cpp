// Stream memory operations: a stream writes a word of memory, or waits until a word fulfils a
// condition.
#include <atomic>
#include <chrono>
#include <span>
#include <thread>
#include <vector>

#include "gpu/emu/api_entry.hpp"
#include "gpu/emu/copies.hpp"

using namespace vmem::emu;

namespace {

struct WordOperation {
  enum class Kind { write, wait, barrier } kind = Kind::barrier;
  unsigned bytes = 0;
  std::uint64_t address = 0;
  std::uint64_t value = 0;
  unsigned flags = 0;

  Access access() const { return kind == Kind::write ? Access::read_write : Access::read; }
};

// Nothing signals memory writes by the CPU or a kernel, so waits poll.
constexpr std::chrono::microseconds poll_interval{20};

template <class Word>
bool fulfilled(Word found, Word wanted, unsigned flags) {
  switch (flags) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return static_cast<std::make_signed_t<Word>>(found - wanted) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return found == wanted;
    case CU_STREAM_WAIT_VALUE_AND:
      return (found & wanted) != 0;
    default:
      return static_cast<Word>(~(found | wanted)) != 0;
  }
}

// The result of one look at a word. `gone`: not mapped, or without the needed access.
enum class Seen { fulfilled, not_yet, gone };

template <class Word>
Seen act_on(std::byte* place, const WordOperation& operation) {
  const std::atomic_ref word(*reinterpret_cast<Word*>(place));
  const auto value = static_cast<Word>(operation.value);
  if (operation.kind == WordOperation::Kind::wait)
    return fulfilled(word.load(), value, operation.flags) ? Seen::fulfilled : Seen::not_yet;
  word.store(value);
  return Seen::fulfilled;
}

// Looks the address up every time: memory may be unmapped while a stream waits for it.
Seen act(const WordOperation& operation, int device) {
  const AddressSpace& space = machine().addresses();
  auto* place = reinterpret_cast<std::byte*>(operation.address);
  std::optional<std::vector<Segment>> segments;  // keeps the memory alive
  if (space.contains(operation.address)) {
    segments = space.segments(operation.address, operation.bytes, device, operation.access());
    if (!segments) return Seen::gone;
    place = segments->front().data;
  } else if (machine().pinned().find(operation.address).bytes == 0) {
    return Seen::gone;
  }
  return operation.bytes == 4 ? act_on<std::uint32_t>(place, operation) : act_on<std::uint64_t>(place, operation);
}

// Carries operations out from `next` on. False: the next one has to wait.
bool advance(Context& context, std::span<const WordOperation> operations, std::size_t& next) {
  for (; next < operations.size() && context.usable() == CUDA_SUCCESS; ++next) {
    // A barrier does nothing: the other operations are sequentially consistent, and earlier work on
    // the stream is complete.
    if (operations[next].kind == WordOperation::Kind::barrier) continue;
    const Seen seen = act(operations[next], context.device().ordinal);
    if (seen == Seen::not_yet) return false;
    if (seen == Seen::gone) context.set_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  return true;
}

void wait_a_little() { std::this_thread::sleep_for(poll_interval); }

CUresult check(const WordOperation& operation, int device) {
  const bool write = operation.kind == WordOperation::Kind::write;
  if (write ? operation.flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER
            : (operation.flags & ~unsigned{CU_STREAM_WAIT_VALUE_FLUSH}) > CU_STREAM_WAIT_VALUE_NOR)
    return CUDA_ERROR_INVALID_VALUE;
  if (operation.address == 0 || operation.address % operation.bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  const Reach reach = reach_of(operation.address);
  if (reach == Reach::pageable) return CUDA_ERROR_INVALID_VALUE;
  if (reach == Reach::vmm &&
      !machine().addresses().accessible(operation.address, operation.bytes, device, operation.access()))
    return CUDA_ERROR_INVALID_VALUE;
  // CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES is 0.
  return !write && (operation.flags & CU_STREAM_WAIT_VALUE_FLUSH) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

CUresult queue(CUstream handle, std::vector<WordOperation> operations) {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  for (const WordOperation& operation : operations) {
    if (operation.kind != WordOperation::Kind::barrier)
      VMEM_EMU_TRY(check(operation, stream->context()->device().ordinal));
  }
  const auto over = [context = stream->context(), operations = std::move(operations), next = std::size_t{0}]() mutable {
    return advance(*context, operations, next);
  };
  return submit(stream, [] {}, {over, wait_a_little});
}

CUresult translate(const CUstreamBatchMemOpParams& from, WordOperation& to) {
  using Kind = WordOperation::Kind;
  switch (from.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      to = {Kind::wait, 4, from.waitValue.address, from.waitValue.value, from.waitValue.flags};
      return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      to = {Kind::wait, 8, from.waitValue.address, from.waitValue.value64, from.waitValue.flags};
      return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      to = {Kind::write, 4, from.writeValue.address, from.writeValue.value, from.writeValue.flags};
      return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      to = {Kind::write, 8, from.writeValue.address, from.writeValue.value64, from.writeValue.flags};
      return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_BARRIER:
      to = {};
      return from.memoryBarrier.flags <= CU_STREAM_MEMORY_BARRIER_TYPE_GPU ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      return from.flushRemoteWrites.flags == 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) try {
  return queue(stream, {{WordOperation::Kind::write, 4, address, value, flags}});
}
VMEM_EMU_CATCH
CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) try {
  return queue(stream, {{WordOperation::Kind::write, 8, address, value, flags}});
}
VMEM_EMU_CATCH
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) try {
  return queue(stream, {{WordOperation::Kind::wait, 4, address, value, flags}});
}
VMEM_EMU_CATCH
CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) try {
  return queue(stream, {{WordOperation::Kind::wait, 8, address, value, flags}});
}
VMEM_EMU_CATCH

CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags) try {
  constexpr unsigned count_limit = 256;
  VMEM_EMU_TRY(enter());
  if (!operations || count >= count_limit || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<WordOperation> translated(count);
  for (unsigned i = 0; i < count; ++i) VMEM_EMU_TRY(translate(operations[i], translated[i]));
  return queue(stream, std::move(translated));
}
VMEM_EMU_CATCH

int vmem_emu_hold(void* handle, const std::uint32_t* open) try {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(static_cast<CUstream>(handle), stream));
  if (open == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto over = [open] { return std::atomic_ref(*const_cast<std::uint32_t*>(open)).load() != 0; };
  return submit(stream, [] {}, {over, wait_a_little});
}
VMEM_EMU_CATCH
