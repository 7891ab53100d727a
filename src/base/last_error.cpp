#include "base/last_error.hpp"

#include "base/printable.hpp"

namespace vmem::last_error {
namespace {

// Trivial type, so that destructors of other thread-local variables can still record a failure. A
// longer message contains a long path or value: its beginning states the request, its end the
// reason.
constexpr std::size_t kMostBytes = 1024;
constexpr std::size_t kHeadBytes = 400;
constinit thread_local char last_message[kMostBytes] = "";

}  // namespace

vmem_status record(const Error& error) noexcept { return record(error.status, error.message); }

vmem_status record(vmem_status status, std::string_view message) noexcept {
  char* end = last_message;
  const auto append = [&end](std::string_view text) {
    for (const char c : text) *end++ = static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  };
  if (message.size() < kMostBytes) {
    append(message);
  } else {
    append(message.substr(0, kHeadBytes));
    append(kLeftOut);
    append(message.substr(message.size() - (kMostBytes - 1 - kHeadBytes - kLeftOut.size())));
  }
  *end = '\0';
  return status;
}

const char* message() noexcept { return last_message; }

}  // namespace vmem::last_error
