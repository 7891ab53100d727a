// Handles forbidden accesses of kernels and host threads. Prints one line on stderr (kernel,
// address, memory there), then runs the signal's default action. Faults unrelated to the emulated
// driver go to the previous handler, such as a sanitizer's.
#pragma once

namespace vmem::emu {

// For SIGSEGV and SIGBUS. Handlers that a program installs after cuInit replace this one: kernels
// that rely on check_host_access then fault.
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
