#include "gpu/emu/fault_handler.hpp"

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gpu/emu/protection.hpp"

namespace vmem::emu {
namespace {

// Read in a signal handler on any thread: its storage must not be allocated on first use.
[[gnu::tls_model("initial-exec")]] thread_local protection::RunningKernel running_kernel;

struct sigaction previous_segv, previous_bus;

// Builds a line with async-signal-safe calls only.
class Line {
 public:
  Line& operator<<(const char* text) {
    while (*text && length_ < sizeof text_) text_[length_++] = *text++;
    return *this;
  }
  Line& hex(std::uint64_t value) {
    *this << "0x";
    int shift = 60;
    while (shift > 0 && (value >> shift & 15) == 0) shift -= 4;
    for (; shift >= 0; shift -= 4) {
      const char digit[] = {"0123456789abcdef"[value >> shift & 15], '\0'};
      *this << digit;
    }
    return *this;
  }
  Line& number(int value) {
    if (value >= 10) number(value / 10);
    const char digit[] = {static_cast<char>('0' + value % 10), '\0'};
    return *this << digit;
  }
  void print() {
    *this << "\n";
    [[maybe_unused]] const auto written = write(STDERR_FILENO, text_, length_);
  }

 private:
  char text_[512];
  std::size_t length_ = 0;
};

bool was_write([[maybe_unused]] const void* context) {
#if defined(__x86_64__)
  constexpr greg_t write_fault = 2;  // of the page-fault error code
  return static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & write_fault;
#else
#error "tell reads from writes in the signal context of this architecture"
#endif
}

const char* words(Access access) {
  switch (access) {
    case Access::none:
      return "no access";
    case Access::read:
      return "read-only";
    case Access::read_write:
      return "read-write";
  }
  return "?";
}

void describe(Line& line, const protection::FaultReport& report, const char* who) {
  switch (report.fault) {
    case protection::Fault::unmapped:
      line << "reserved, nothing is mapped there";
      break;
    case protection::Fault::inaccessible:
    case protection::Fault::resolved:
      line << "mapped, " << who << " has " << words(report.granted);
      break;
    case protection::Fault::refused:
      line << "mapped, but the system refuses to open the page to " << who;
      break;
    case protection::Fault::unknown:
      line << "not an address of the driver";
      break;
  }
}

void end_process(int signal) {
  struct sigaction standard{};
  standard.sa_handler = SIG_DFL;
  sigaction(signal, &standard, nullptr);  // returning repeats the access and ends the process
}

// True: the access may be repeated.
bool handle_kernel_fault(int signal, std::uint64_t address, bool write) {
  protection::FaultReport report;
  if (signal == SIGSEGV) report = protection::resolve_kernel_fault(address, write, running_kernel);
  if (report.fault == protection::Fault::resolved) return true;
  Line line;
  line << "vmem emulated driver: kernel '" << running_kernel.name << "' on device ";
  line.number(running_kernel.device) << (write ? " wrote to " : " read ");
  line.hex(address) << ": ";
  describe(line, report, "this device");
  line.print();
  return false;
}

// True: the fault concerned the emulated driver's memory and has been reported.
bool report_host_fault(std::uint64_t address, bool write) {
  const protection::FaultReport report = protection::describe_host_fault(address);
  if (report.fault == protection::Fault::unknown) return false;
  Line line;
  line << "vmem emulated driver: a host thread " << (write ? "wrote to " : "read ");
  line.hex(address) << " outside a kernel: ";
  describe(line, report, "the host");
  line.print();
  return true;
}

void chain(int signal, siginfo_t* info, void* context) {
  const struct sigaction& previous = signal == SIGSEGV ? previous_segv : previous_bus;
  if (previous.sa_flags & SA_SIGINFO) return previous.sa_sigaction(signal, info, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) return previous.sa_handler(signal);
  end_process(signal);
  if (info->si_code <= 0) raise(signal);  // sent by kill(): returning repeats no access
}

void on_fault(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<std::uint64_t>(info->si_addr);
  const bool synchronous = info->si_code > 0;  // not sent by kill()
  if (synchronous && running_kernel.name) {
    if (!handle_kernel_fault(signal, address, was_write(context))) end_process(signal);
  } else if (synchronous && report_host_fault(address, was_write(context))) {
    end_process(signal);
  } else {
    chain(signal, info, context);
  }
  errno = saved_errno;
}

}  // namespace

void install_fault_handler() {
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &previous_segv);
  sigaction(SIGBUS, &action, &previous_bus);
}

KernelScope::KernelScope(const char* name, int device) { running_kernel = {name, device}; }

KernelScope::~KernelScope() {
  protection::kernel_ends(running_kernel);
  running_kernel.name = nullptr;
}

}  // namespace vmem::emu
