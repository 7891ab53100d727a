// Hints and questions about memory, passed on to the mover.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.hpp"
#include "runtime/memory/addresses.hpp"

namespace vmem::runtime {

// Any thread.
class Requests {
 public:
  struct Parts {
    const Devices& devices;
    const pagetable::AddressSpace& space;
    migration::Mover& mover;
    const Suballocator& small;
    const AddressResolver& addresses;
  };
  explicit Requests(const Parts& parts) : parts_(parts) {}

  Status prefetch(const void* pointer, std::size_t bytes);
  Status advise(const void* pointer, std::size_t bytes, vmem_advice advice);
  // Work that does not name the allocation may reach it: keeps it mapped in place until it is freed
  // (of a small allocation, its pages). Errors: OUT_OF_MEMORY if too much would be kept; then the
  // allocation moves as before.
  Status keep(std::uintptr_t address);
  Status query(const void* pointer, vmem_pointer_info& info);
  // Waits until no transfer is in flight.
  Status quiesce();
  // For people: what lies at an address of the address space, and its recent history.
  std::string describe(std::uintptr_t address) const;

 private:
  const Parts parts_;
};

}  // namespace vmem::runtime
