// Records the mapped addresses and their access rights, and sets the protection of the pages
// accordingly. The fault handler reads this part of the address space. Therefore it is a flat table
// of atomic words, one per 2 MiB of the user address range, committed lazily. Its one spin lock is
// never held while a kernel runs on the thread.
//
// With check_host_access a device mapping is inaccessible to the whole process until a kernel
// faults on it. The handler checks the access and opens the mapping for that kernel. The mapping is
// closed when that kernel ends; other kernels that use it fault and reopen it.
// A host thread that touches device memory thus faults, as on a real machine, unless a kernel has
// the mapping open. The table also shows which mappings running kernels use.
// Without the check, a page accessible to one device is accessible to the whole process.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace vmem::emu {

// The values of CUmemAccess_flags: two bits. The union of two accesses is their bitwise or.
enum class Access : unsigned { none = 0, read = 1, read_write = 3 };

inline bool permits(Access granted, Access wanted) {
  return (static_cast<unsigned>(granted) & static_cast<unsigned>(wanted)) == static_cast<unsigned>(wanted);
}

// The access rights of each device, and of the host, to a mapping.
class AccessSet {
 public:
  static constexpr unsigned host_shift = 32;
  static constexpr std::uint64_t all_bits = (std::uint64_t{1} << 34) - 1;

  AccessSet() = default;
  explicit AccessSet(std::uint64_t bits) : bits_(bits & all_bits) {}

  Access device(int ordinal) const { return at(2 * static_cast<unsigned>(ordinal)); }
  Access host() const { return at(host_shift); }
  void set_device(int ordinal, Access access) { set(2 * static_cast<unsigned>(ordinal), access); }
  void set_host(Access access) { set(host_shift, access); }
  Access any_device() const;
  std::uint64_t bits() const { return bits_; }

 private:
  Access at(unsigned shift) const { return static_cast<Access>(bits_ >> shift & 3); }
  void set(unsigned shift, Access access) {
    bits_ = (bits_ & ~(std::uint64_t{3} << shift)) | std::uint64_t{static_cast<unsigned>(access)} << shift;
  }
  std::uint64_t bits_ = 0;
};

namespace protection {

// Call before any other function, and again on reconfiguration, with nothing mapped. False: no room
// for the table.
bool start(bool check_host_access);

// Address ranges that belong to the emulated driver. False: too many ranges, or the system refuses.
bool add_reservation(std::uint64_t begin, std::size_t bytes);
void remove_reservation(std::uint64_t begin);

// The name of a kernel that has the range open, or null. Changing a mapping under a kernel is fatal
// on a GPU. Needs check_host_access. Use the name for messages only.
const char* kernel_using(std::uint64_t begin, std::size_t bytes);

// Both take whole granules inside a reservation. False: the system refuses, most likely for its
// limit on mappings.
bool map(std::uint64_t begin, std::size_t bytes, int fd, off_t offset, AccessSet access);
bool unmap(std::uint64_t begin, std::size_t bytes);
// REQUIRES: `begin` and `bytes` match a mapping exactly.
bool set_access(std::uint64_t begin, std::size_t bytes, AccessSet access);

// kernel_ends must follow every kernel: it closes the mappings that the kernel's faults opened.
struct RunningKernel {
  const char* name = nullptr;  // null: the thread runs no kernel
  int device = 0;
};
void kernel_ends(const RunningKernel& kernel);

// Async-signal-safe.
enum class Fault {
  resolved,      // access granted and page open: retry the instruction
  unknown,       // not an address of the emulated driver
  unmapped,      // reserved, nothing mapped
  inaccessible,  // mapped, without the requested access
  refused,       // access granted, but the page could not be opened
};
struct FaultReport {
  Fault fault = Fault::unknown;
  Access granted = Access::none;
};
FaultReport resolve_kernel_fault(std::uint64_t address, bool write, const RunningKernel& kernel);
FaultReport describe_host_fault(std::uint64_t address);

}  // namespace protection
}  // namespace vmem::emu
