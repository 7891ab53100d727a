// Marks vmem's own work on a thread, so that hooks pass through the calls of vmem's libraries.
#pragma once

namespace vmem {

// The calling thread's mark.
bool& of_vmem() noexcept;

struct OfVmem {
  bool& flag;
  const bool before = flag;
  explicit OfVmem(bool& of_thread = of_vmem()) : flag(of_thread) { flag = true; }
  ~OfVmem() { flag = before; }
  OfVmem(const OfVmem&) = delete;
  OfVmem& operator=(const OfVmem&) = delete;
};

}  // namespace vmem
