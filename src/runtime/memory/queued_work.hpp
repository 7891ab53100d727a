// Implements the suballocator's StreamMarks over the stream table: a mark is a Stamp's word.
#pragma once

#include "migration/streams.hpp"
#include "runtime/suballocator.hpp"

namespace vmem::runtime {

// The stream that a handle names while `context` (0: none) is current.
StreamId identify(vmem_stream stream, std::uintptr_t context);

class QueuedWork final : public StreamMarks {
 public:
  explicit QueuedWork(migration::StreamTable& streams) : streams_(streams) {}

  // A thread without a usable context always gets 0; its first call on a stream reports the error.
  std::uintptr_t context() noexcept override;
  Result<std::uint64_t> mark(const StreamId& stream) override;
  bool complete(std::uint64_t mark) override { return streams_.query(pagetable::Stamp(mark)); }
  // The stream that the handle names in the calling thread.
  StreamId identify(vmem_stream stream) { return runtime::identify(stream, context()); }

 private:
  migration::StreamTable& streams_;
};

}  // namespace vmem::runtime
