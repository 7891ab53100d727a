#include "intercept/crash.hpp"

#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "base/log.hpp"

namespace vmem::intercept {
namespace {

constexpr std::array kSignals{SIGSEGV, SIGBUS, SIGABRT};
std::array<struct sigaction, kSignals.size()> before{};
std::uintptr_t own_base = 0;
bool always = false;

void say(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(std::size_t(written));
  }
}

// Libraries that run on behalf of a caller: the caller's frame decides.
bool works_for_others(std::string_view file) {
  const std::string_view name = file.substr(file.rfind('/') + 1);
  for (const std::string_view each :
       {"libc.so", "libcuda.so", "libstdc++.so", "libgcc_s.so", "ld-linux", "libpthread.so"}) {
    if (name.starts_with(each)) return true;
  }
  return false;
}

bool in_vmem(const void* at) {
  Dl_info info{};
  return dladdr(at, &info) != 0 && reinterpret_cast<std::uintptr_t>(info.dli_fbase) == own_base;
}

// For a jump to an address without code, as through a null pointer: the return address is on top of
// the stack.
bool called_by_us(const void* context) {
  const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(registers[REG_RIP]), &info) != 0) return false;
  void* from = nullptr;
  // The stack may be invalid: process_vm_readv fails instead of faulting.
  const iovec here{&from, sizeof from};
  const iovec there{reinterpret_cast<void*>(registers[REG_RSP]), sizeof from};
  if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != ssize_t(sizeof from)) return false;
  return in_vmem(from);
}

// Whether the innermost frame outside such libraries is vmem's.
bool ours(void* const* frames, int count) {
  // Skips this handler's frame and the kernel's signal frame.
  for (int i = 2; i < count; ++i) {
    Dl_info info{};
    if (in_vmem(frames[i])) return true;
    if (dladdr(frames[i], &info) == 0) return false;
    if (info.dli_fname == nullptr || !works_for_others(info.dli_fname)) return false;
  }
  return false;
}

void crashed(int signal, siginfo_t* info, void* context) {
  static std::atomic<bool> said{false};
  std::array<void*, 48> frames;
  const int count = backtrace(frames.data(), int(frames.size()));
  const bool by_us = ours(frames.data(), count) || called_by_us(context);
  if ((by_us || always) && !said.exchange(true)) {
    say(by_us ? "vmem: the process crashed in vmem, or in a call that vmem made or passed on."
              : "vmem: the process crashed.");
    say(" The way that led there, innermost first:\n");
    backtrace_symbols_fd(frames.data(), count, STDERR_FILENO);
  }
  const auto which = std::size_t(std::ranges::find(kSignals, signal) - kSignals.begin());
  const struct sigaction& earlier = before[which];
  if ((earlier.sa_flags & SA_SIGINFO) != 0) return earlier.sa_sigaction(signal, info, context);
  if (earlier.sa_handler != SIG_DFL && earlier.sa_handler != SIG_IGN) return earlier.sa_handler(signal);
  // Restores the earlier action. A faulting instruction then faults again by itself.
  (void)sigaction(signal, &earlier, nullptr);
  // a sent signal must be raised again
  if (signal == SIGABRT || info->si_code <= 0) (void)raise(signal);
}

}  // namespace

void report_own_crashes() {
  always = log::enabled(log::Level::debug);
  Dl_info own{};
  if (dladdr(reinterpret_cast<void*>(&report_own_crashes), &own) == 0) return;
  own_base = reinterpret_cast<std::uintptr_t>(own.dli_fbase);
  void* first = nullptr;
  (void)backtrace(&first, 1);  // loads libgcc now, because a signal handler must not
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (sigaction(kSignals[i], nullptr, &before[i]) != 0) continue;
    struct sigaction action{};
    action.sa_sigaction = crashed;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | (before[i].sa_flags & SA_NODEFER);
    action.sa_mask = before[i].sa_mask;
    (void)sigaction(kSignals[i], &action, nullptr);
  }
}

}  // namespace vmem::intercept
