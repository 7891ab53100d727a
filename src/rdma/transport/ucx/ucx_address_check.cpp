#include "rdma/transport/ucx/ucx_address_check.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "base/own_folder.hpp"

namespace vmem::rdma {
namespace {

constexpr const char* kProgram = "libexec/vmem/ucx-address";
constexpr std::size_t kStackBytes = std::size_t{64} << 10;
constexpr int kCannotRun = 127;
constexpr rlim_t kMostCpuSeconds = 5;  // UCX inspects the machine's devices first

// Found from bin/ and lib/ of an installation or a build, from lib/x86_64-linux-gnu/ and from
// libexec/vmem/tests/.
Result<std::string> find_program() {
  const std::filesystem::path here = own_folder();
  for (const auto& folder :
       {here.parent_path(), here.parent_path().parent_path(), here.parent_path().parent_path().parent_path()}) {
    const auto program = folder / kProgram;
    if (::access(program.c_str(), X_OK) == 0) return program.string();
  }
  return fail(VMEM_ERROR_UNSUPPORTED,
              fmt::format("a fabric needs vmem's program {}, which is not beside {}: install vmem as a whole", kProgram,
                          here.string()));
}

// Arguments of the child between clone and exec. The child runs in this process's memory while the
// cloning thread waits, so it makes only system calls.
struct Start {
  const char* program = nullptr;
  char* const* arguments = nullptr;
  char* const* environment = nullptr;
  int input = -1, nowhere = -1;
  pid_t parent = 0;
};

__attribute__((no_sanitize_address)) void reset_signals() {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action{};
    if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler == SIG_DFL) continue;
    action = {};
    action.sa_handler = SIG_DFL;
    (void)::sigaction(signal, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  (void)::sigprocmask(SIG_SETMASK, &none, nullptr);
}

__attribute__((no_sanitize_address)) int run_program(void* argument) {
  const auto& start = *static_cast<const Start*>(argument);
  reset_signals();
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != start.parent) ::_exit(kCannotRun);
  const rlimit no_core{0, 0}, cpu{kMostCpuSeconds, kMostCpuSeconds};
  (void)::setrlimit(RLIMIT_CORE, &no_core);
  (void)::setrlimit(RLIMIT_CPU, &cpu);
  if (::dup2(start.input, STDIN_FILENO) >= 0 && ::dup2(start.nowhere, STDOUT_FILENO) >= 0 &&
      ::dup2(start.nowhere, STDERR_FILENO) >= 0)
    ::execve(start.program, start.arguments, start.environment);
  ::_exit(kCannotRun);
}

// Like vfork and exec. Returns a pidfd.
Result<FileDescriptor> spawn(Start start) {
  std::vector<std::byte> stack(kStackBytes);
  sigset_t all, before;
  sigfillset(&all);
  // No signal handler of the host program may run in the child.
  (void)::pthread_sigmask(SIG_SETMASK, &all, &before);
  constexpr int kFlags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD;
  int child = -1;
  const int made = ::clone(&run_program, stack.data() + stack.size(), kFlags, &start, &child);
  const int code = errno;
  (void)::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (made < 0)
    return fail(VMEM_ERROR_LOST, fmt::format("{} cannot be started: {}", start.program, std::strerror(code)), code);
  return FileDescriptor(child);
}

// Each address is preceded by its size (32 bits).
std::vector<std::byte> input_of(std::span<const UcxAddress> addresses) {
  std::vector<std::byte> input;
  for (const UcxAddress& address : addresses) {
    const auto size = static_cast<std::uint32_t>(address.size());
    const auto bytes = std::as_bytes(std::span(&size, 1));
    input.insert(input.end(), bytes.begin(), bytes.end());
    input.insert(input.end(), address.begin(), address.end());
  }
  return input;
}

Result<FileDescriptor> file_of(ConstBytes input) {
  FileDescriptor file(::memfd_create("vmem-ucx-addresses", MFD_CLOEXEC));
  if (::write(file.get(), input.data(), input.size()) != static_cast<ssize_t>(input.size()))
    return fail(VMEM_ERROR_LOST, fmt::format("no memory for UCX addresses: {}", std::strerror(errno)), errno);
  (void)::lseek(file.get(), 0, SEEK_SET);
  return file;
}

std::vector<char*> pointers_to(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

// ---- checker ----

UcxAddressChecker::UcxAddressChecker(UcxRef ucx, std::string program, const UcxSettings& settings)
    : ucx_(std::move(ucx)), program_(std::move(program)), arguments_{program_} {
  for (const auto& [name, value] : settings) arguments_.push_back(fmt::format("{}={}", name, value));
  for (char** each = environ; *each != nullptr; ++each) {
    // Libraries preloaded into this process must not be loaded into the child.
    if (!std::string_view(*each).starts_with("LD_PRELOAD=")) environment_.emplace_back(*each);
  }
}

Result<UcxAddressChecker> UcxAddressChecker::create(UcxRef ucx, const UcxSettings& settings) {
  VMEM_ASSIGN(std::string program, find_program());
  return UcxAddressChecker(std::move(ucx), std::move(program), settings);
}

Result<UcxAddressCheck> UcxAddressChecker::start(std::span<const UcxAddress> addresses) const {
  const std::vector<std::byte> input = input_of(addresses);
  VMEM_ASSIGN(FileDescriptor file, file_of(input));
  const FileDescriptor nowhere(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const std::vector<char*> arguments = pointers_to(arguments_), environment = pointers_to(environment_);
  VMEM_ASSIGN(FileDescriptor process, spawn({.program = program_.c_str(),
                                             .arguments = arguments.data(),
                                             .environment = environment.data(),
                                             .input = file.get(),
                                             .nowhere = nowhere.get(),
                                             .parent = ::getpid()}));
  return UcxAddressCheck(ucx_, {std::move(process), std::move(file), static_cast<std::int64_t>(input.size())});
}

// ---- check ----

UcxAddressCheck::~UcxAddressCheck() {
  if (!child_.process) return;
  (void)::syscall(SYS_pidfd_send_signal, child_.process.get(), SIGKILL, nullptr, 0);
  reap(0);
}

// The host program may have reaped the child already.
void UcxAddressCheck::reap(int options) const {
  siginfo_t ended{};
  (void)::waitid(P_PIDFD, static_cast<id_t>(child_.process.get()), &ended, WEXITED | options);
}

Result<bool> UcxAddressCheck::done() {
  pollfd process{.fd = child_.process.get(), .events = POLLIN, .revents = 0};
  if (::poll(&process, 1, 0) != 1) return false;
  reap(WNOHANG);
  child_.process.reset();
  VMEM_TRY(verdict());
  return true;
}

Status UcxAddressCheck::verdict() const {
  std::int32_t word = 0;
  if (::pread(child_.words.get(), &word, sizeof(word), child_.verdict_at) != sizeof(word))
    return fail(
        VMEM_ERROR_INVALID_VALUE,
        "a UCX address of the peer's ends a process that uses it: it is malformed, or of another version of UCX");
  switch (static_cast<UcxVerdict>(word)) {
    case UcxVerdict::accepted:
      return {};
    case UcxVerdict::not_started:
      return fail(VMEM_ERROR_LOST, "UCX could not be started to check the peer's addresses");
    case UcxVerdict::not_stopped:
      return fail(VMEM_ERROR_LOST, "this version of UCX connects in a way that vmem cannot check addresses for");
  }
  return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("UCX does not take an address of the peer's: {}; both need a "
                                                    "transport of UCX in common (UCX_TLS)",
                                                    ucx_->words(static_cast<ucs_status_t>(word))));
}

}  // namespace vmem::rdma
