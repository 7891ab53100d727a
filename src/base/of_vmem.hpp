// Marks what vmem itself does on a thread, so that hooks leave alone what libraries that it uses call.
#pragma once

namespace vmem {

// Of the calling thread.
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
