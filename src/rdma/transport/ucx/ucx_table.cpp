#include "rdma/transport/ucx/ucx_table.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <utility>

#include "base/library.hpp"

namespace vmem::rdma {
namespace {

constexpr const char* kAdvice = "several nodes need UCX 1.13 or newer: install it (Debian, Ubuntu: libucx0)";
// UCX settings that only the environment can give, and whose defaults harm the host program.
// Variables that are already set stay as they are.
constexpr std::pair<const char*, const char*> kEnvironment[] = {
    // Otherwise UCX handles SIGSEGV and other signals of the program or of vmem.
    {"UCX_ERROR_SIGNALS", ""},
    // Otherwise UCX writes warnings to stdout, and lines of its own beside vmem's errors.
    {"UCX_LOG_FILE", "stderr"},
    {"UCX_LOG_LEVEL", "fatal"},
    // Required for endpoints with error handling over shared memory.
    {"UCX_POSIX_ERROR_HANDLING", "y"},
    {"UCX_SYSV_ERROR_HANDLING", "y"},
    // No warnings about the two above where shared memory is not used.
    {"UCX_WARN_UNUSED_ENV_VARS", "n"},
    // Segment size of copied payloads: UCX's 8 KiB takes 1.6 times as long.
    {"UCX_TCP_TX_SEG_SIZE", "256k"},
    {"UCX_TCP_RX_SEG_SIZE", "256k"},
};

constexpr unsigned kOldestMajor = 1, kOldestMinor = 13;

}  // namespace

Result<UcxRef> Ucx::load() {
  for (const auto& [name, value] : kEnvironment) ::setenv(name, value, 0);
  VMEM_ASSIGN(const Library library, open_library("libucp.so.0", kAdvice));
  auto ucx = std::make_shared<Ucx>();
#define VMEM_RESOLVE(name)                                                     \
  {                                                                            \
    VMEM_ASSIGN(void* const function, find_function(library, #name, kAdvice)); \
    ucx->table_.name = reinterpret_cast<decltype(ucx->table_.name)>(function); \
  }
  VMEM_UCX_FUNCTIONS(VMEM_RESOLVE)
#undef VMEM_RESOLVE
  unsigned major = 0, minor = 0, release = 0;
  ucx->table_.ucp_get_version(&major, &minor, &release);
  if (major != kOldestMajor || minor < kOldestMinor)
    return fail(VMEM_ERROR_UNSUPPORTED,
                fmt::format("{} is UCX {}.{}.{}; {}", library.path, major, minor, release, kAdvice));
  return ucx;
}

std::string Ucx::version() const {
  unsigned major = 0, minor = 0, release = 0;
  table_.ucp_get_version(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

Status Ucx::check(ucs_status_t status, const char* call) const {
  if (status == UCS_OK) return {};
  return fail(status == UCS_ERR_NO_MEMORY ? VMEM_ERROR_OUT_OF_MEMORY : VMEM_ERROR_UNSUPPORTED,
              fmt::format("{} failed: {}", call, words(status)), status);
}

}  // namespace vmem::rdma
