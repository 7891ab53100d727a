// Malformed worker addresses fail assertions in UCX, which end the process. So a separate program
// (ucx_address_program.cpp) first makes endpoints to a peer's addresses, up to where UCX would
// connect. It does not touch the network; the peer does not notice.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "rdma/transport/ucx/ucx_exchange.hpp"
#include "rdma/transport/ucx/ucx_handles.hpp"

namespace vmem::rdma {

// The program's results, beside UCX's own statuses, which are negative. The program appends them to
// its input: an exit code is lost if the host program waits for any child, or ignores children.
enum class UcxVerdict : std::int32_t {
  accepted = 1,
  not_started = 2,  // no context or worker could be made, or malformed input
  not_stopped = 3,  // UCX connected in a way that the program cannot intercept
};

// A check of one peer's addresses in progress. One thread.
class UcxAddressCheck {
 public:
  struct Child {
    FileDescriptor process;       // a pidfd
    FileDescriptor words;         // a memfd: the addresses, then the verdict
    std::int64_t verdict_at = 0;  // offset of the verdict
  };
  // The child ends by itself; the destructor kills a child that has not.
  UcxAddressCheck(UcxRef ucx, Child child) : ucx_(std::move(ucx)), child_(std::move(child)) {}
  UcxAddressCheck(UcxAddressCheck&&) = default;
  UcxAddressCheck& operator=(UcxAddressCheck&&) = delete;
  ~UcxAddressCheck();

  // Readable once done() has a result.
  int descriptor() const noexcept { return child_.process.get(); }
  // True: UCX accepts all addresses. False: not known yet. Errors: INVALID_VALUE for an address
  // that UCX does not accept; LOST if the check was not made.
  Result<bool> done();

 private:
  Status verdict() const;
  void reap(int options) const;
  UcxRef ucx_;
  Child child_;
};

class UcxAddressChecker {
 public:
  // For a context with these settings. Errors: UNSUPPORTED if the program is not installed.
  static Result<UcxAddressChecker> create(UcxRef ucx, const UcxSettings& settings);
  // Errors: LOST if the system refuses memory or a process.
  Result<UcxAddressCheck> start(std::span<const UcxAddress> addresses) const;

 private:
  UcxAddressChecker(UcxRef ucx, std::string program, const UcxSettings& settings);
  UcxRef ucx_;
  std::string program_;
  std::vector<std::string> arguments_, environment_;
};

}  // namespace vmem::rdma
