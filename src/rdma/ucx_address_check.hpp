// UCX checks the address of a worker by assertions, which end the process. So a program of its own
// (ucx_address_program.cpp) makes endpoints to a peer's addresses first, up to where UCX would connect: it
// touches no network, and the peer sees nothing of it.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "rdma/ucx_exchange.hpp"
#include "rdma/ucx_handles.hpp"

namespace vmem::rdma {

// The program's last words, beside UCX's own statuses, which are negative. Written behind the addresses: the
// program that vmem is in may wait for any child, or ignore them, and then the exit code is lost.
enum class UcxVerdict : std::int32_t {
  accepted = 1,
  not_started = 2,  // no context or worker could be made, or the input was none
  not_stopped = 3,  // UCX connected in a way that the program does not know
};

// The addresses of one peer, while they are being checked. One thread.
class UcxAddressCheck {
 public:
  struct Child {
    FileDescriptor process;       // a pidfd
    FileDescriptor words;         // a file in memory: the addresses, then the verdict
    std::int64_t verdict_at = 0;  // in it
  };
  // The child ends by itself, or is killed with this.
  UcxAddressCheck(UcxRef ucx, Child child) : ucx_(std::move(ucx)), child_(std::move(child)) {}
  UcxAddressCheck(UcxAddressCheck&&) = default;
  UcxAddressCheck& operator=(UcxAddressCheck&&) = delete;
  ~UcxAddressCheck();

  // Readable when done() says more than false.
  int descriptor() const noexcept { return child_.process.get(); }
  // True: UCX takes all addresses. False: it is not known yet. Errors: INVALID_VALUE for addresses that UCX
  // does not take; LOST if there was no check.
  Result<bool> done();

 private:
  Status verdict() const;
  void reap(int options) const;
  UcxRef ucx_;
  Child child_;
};

class UcxAddressChecker {
 public:
  // With these settings. Errors: UNSUPPORTED if the program is not where it belongs.
  static Result<UcxAddressChecker> create(UcxRef ucx, const UcxSettings& settings);
  // Errors: LOST for what the system refuses.
  Result<UcxAddressCheck> start(std::span<const UcxAddress> addresses) const;

 private:
  UcxAddressChecker(UcxRef ucx, std::string program, const UcxSettings& settings);
  UcxRef ucx_;
  std::string program_;
  std::vector<std::string> arguments_, environment_;
};

}  // namespace vmem::rdma
