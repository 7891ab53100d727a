#include "base/last_error.hpp"

#include <algorithm>
#include <cstring>

namespace vmem::last_error {
namespace {

// Trivial, so that it is still there when the destructors of other thread-local variables fail a call. Longer messages are cut.
constexpr std::size_t kMostBytes = 1024;
constinit thread_local char last_message[kMostBytes] = "";

}  // namespace

vmem_status record(const Error& error) noexcept { return record(error.status, error.message); }

vmem_status record(vmem_status status, std::string_view message) noexcept {
  const std::size_t bytes = std::min(message.size(), kMostBytes - 1);
  std::memcpy(last_message, message.data(), bytes);
  last_message[bytes] = '\0';
  return status;
}

const char* message() noexcept { return last_message; }

}  // namespace vmem::last_error
