// What happens when a kernel, or a host thread, touches memory it may not: one line on stderr that names the kernel,
// the address and what is there, then the signal's default action. Faults that have nothing to do with the emulated
// driver go to the handler that was there before, such as a sanitizer's.
#pragma once

namespace vmem::emu {

// For SIGSEGV and SIGBUS. A program that installs its own handlers after cuInit replaces this one: then kernels that
// rely on check_host_access fault.
void install_fault_handler();

// Marks the calling thread as running a kernel of `device`. `name` must outlive the scope.
class KernelScope {
 public:
  KernelScope(const char* name, int device);
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;
};

}  // namespace vmem::emu
