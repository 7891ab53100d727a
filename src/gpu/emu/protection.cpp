#include "gpu/emu/protection.hpp"

#include <sched.h>
#include <sys/mman.h>

#include <array>
#include <atomic>

#include "gpu/emu/config.hpp"

namespace vmem::emu {

Access AccessSet::any_device() const {
  unsigned united = 0;
  for (int device = 0; device < device_count_max; ++device) united |= static_cast<unsigned>(this->device(device));
  return static_cast<Access>(united);
}

namespace protection {
namespace {

// A granule's word: 0 if nothing is mapped; otherwise access, the mapping's first granule, and
// whether a fault opened the mapping.
constexpr unsigned first_granule_shift = 34;
constexpr std::uint64_t first_granule_mask = (std::uint64_t{1} << 26) - 1;
constexpr std::uint64_t mapped_bit = std::uint64_t{1} << 60;
constexpr std::uint64_t opened_bit = std::uint64_t{1} << 61;
constexpr std::size_t granule_count = std::size_t{1} << 26;  // 47 address bits
using Word = std::atomic<std::uint64_t>;
static_assert(sizeof(Word) == 8 && Word::is_always_lock_free);

// Usable in a signal handler: a thread that faults in a kernel never holds the lock, and the holder
// is never in a kernel.
class SpinLock {
 public:
  void lock() {
    while (flag_.test_and_set(std::memory_order_acquire)) sched_yield();
  }
  void unlock() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_;
};

class SpinGuard {
 public:
  explicit SpinGuard(SpinLock& lock) : lock_(lock) { lock_.lock(); }
  ~SpinGuard() { lock_.unlock(); }
  SpinGuard(const SpinGuard&) = delete;
  SpinGuard& operator=(const SpinGuard&) = delete;

 private:
  SpinLock& lock_;
};

struct ReservationSlot {
  std::atomic<std::uint64_t> begin{0};
  std::atomic<std::uint64_t> bytes{0};  // 0: free
};

// All storage is static or mapped once, so nothing here allocates.
Word* table = nullptr;
// Protects the variables below, and keeps words and page protections consistent.
SpinLock table_lock;
bool check_host_access = false;
struct OpenedMapping {
  std::uint32_t granule;  // the mapping's first
  const RunningKernel* kernel;
};
std::array<OpenedMapping, 1 << 18> opened;  // exceeds the system's limit on mappings
std::size_t opened_count = 0;
std::array<ReservationSlot, 1 << 16> reservations;
std::atomic<std::size_t> reservation_slots{0};  // slots ever used

std::uint64_t granule_of(std::uint64_t address) { return address / granule_bytes; }
std::uint64_t first_granule(std::uint64_t word) { return word >> first_granule_shift & first_granule_mask; }

void* address_of(std::uint64_t granule) { return reinterpret_cast<void*>(granule * granule_bytes); }

int page_protection(std::uint64_t word) {
  const AccessSet access(word);
  unsigned bits = static_cast<unsigned>(access.host());
  if (!check_host_access || (word & opened_bit)) bits |= static_cast<unsigned>(access.any_device());
  return bits == 0 ? PROT_NONE : (bits & 2) ? PROT_READ | PROT_WRITE : PROT_READ;
}

void store_words(std::uint64_t granule, std::size_t count, std::uint64_t word) {
  for (std::size_t i = 0; i < count; ++i) table[granule + i].store(word, std::memory_order_release);
}

// The number of granules in the mapping that begins at `granule`.
std::size_t mapping_granules(std::uint64_t granule) {
  const std::uint64_t word = table[granule].load(std::memory_order_relaxed);
  std::size_t count = 1;
  while (granule + count < granule_count && table[granule + count].load(std::memory_order_relaxed) == word) ++count;
  return count;
}

// False: the system refuses; nothing changes.
bool change_word(std::uint64_t granule, std::size_t count, std::uint64_t word) {
  const std::uint64_t before = table[granule].load(std::memory_order_relaxed);
  store_words(granule, count, word);
  if (page_protection(before) == page_protection(word)) return true;
  if (mprotect(address_of(granule), count * granule_bytes, page_protection(word)) == 0) return true;
  store_words(granule, count, before);
  return false;
}

// False: `opened` is full, or the system refuses.
bool open_mapping(std::uint64_t granule, const RunningKernel& kernel) {
  const std::uint64_t word = table[granule].load(std::memory_order_relaxed);
  if (word & opened_bit) return true;
  if (opened_count == opened.size()) return false;
  if (!change_word(granule, mapping_granules(granule), word | opened_bit)) return false;
  opened[opened_count++] = {static_cast<std::uint32_t>(granule), &kernel};
  return true;
}

void close_mapping(std::uint64_t granule) {
  const std::uint64_t word = table[granule].load(std::memory_order_relaxed);
  if (word & opened_bit) change_word(granule, mapping_granules(granule), word & ~opened_bit);
}

bool in_reservation(std::uint64_t address) {
  const std::size_t slots = reservation_slots.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < slots; ++i) {
    const std::uint64_t bytes = reservations[i].bytes.load(std::memory_order_acquire);
    if (address - reservations[i].begin.load(std::memory_order_relaxed) < bytes) return true;
  }
  return false;
}

FaultReport absent(std::uint64_t address) {
  return {in_reservation(address) ? Fault::unmapped : Fault::unknown, Access::none};
}

}  // namespace

bool start(bool check) {
  check_host_access = check;
  if (table) return true;
  void* memory = mmap(nullptr, granule_count * sizeof(Word), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  table = static_cast<Word*>(memory);  // zero bytes are valid words
  return true;
}

bool add_reservation(std::uint64_t begin, std::size_t bytes) {
  const SpinGuard guard(table_lock);
  const std::size_t used = reservation_slots.load(std::memory_order_relaxed);
  std::size_t slot = 0;
  while (slot < used && reservations[slot].bytes.load(std::memory_order_relaxed) != 0) ++slot;
  if (slot == reservations.size()) return false;
  reservations[slot].begin.store(begin, std::memory_order_relaxed);
  reservations[slot].bytes.store(bytes, std::memory_order_release);
  if (slot == used) reservation_slots.store(used + 1, std::memory_order_release);
  return true;
}

void remove_reservation(std::uint64_t begin) {
  const SpinGuard guard(table_lock);
  const std::size_t used = reservation_slots.load(std::memory_order_relaxed);
  for (std::size_t slot = 0; slot < used; ++slot)
    if (reservations[slot].begin.load(std::memory_order_relaxed) == begin)
      reservations[slot].bytes.store(0, std::memory_order_release);
}

bool map(std::uint64_t begin, std::size_t bytes, int fd, off_t offset, AccessSet access) {
  const std::uint64_t word = access.bits() | granule_of(begin) << first_granule_shift | mapped_bit;
  const SpinGuard guard(table_lock);
  void* at = mmap(reinterpret_cast<void*>(begin), bytes, page_protection(word), MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                  fd, offset);
  if (at == MAP_FAILED) return false;
  store_words(granule_of(begin), bytes / granule_bytes, word);
  return true;
}

bool unmap(std::uint64_t begin, std::size_t bytes) {
  const SpinGuard guard(table_lock);
  store_words(granule_of(begin), bytes / granule_bytes, 0);
  return mmap(reinterpret_cast<void*>(begin), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
              -1, 0) != MAP_FAILED;
}

bool set_access(std::uint64_t begin, std::size_t bytes, AccessSet access) {
  const SpinGuard guard(table_lock);
  const std::uint64_t before = table[granule_of(begin)].load(std::memory_order_relaxed);
  return change_word(granule_of(begin), bytes / granule_bytes, (before & ~AccessSet::all_bits) | access.bits());
}

void kernel_ends(const RunningKernel& kernel) {
  if (!check_host_access) return;
  const SpinGuard guard(table_lock);
  for (std::size_t i = 0; i < opened_count;) {
    if (opened[i].kernel != &kernel) {
      ++i;
      continue;
    }
    close_mapping(opened[i].granule);
    opened[i] = opened[--opened_count];
  }
}

const char* kernel_using(std::uint64_t begin, std::size_t bytes) {
  const SpinGuard guard(table_lock);
  for (std::size_t i = 0; i < opened_count; ++i) {
    const std::uint64_t granule = opened[i].granule;
    const bool open = table[granule].load(std::memory_order_relaxed) & opened_bit;
    if (open && granule >= granule_of(begin) && granule < granule_of(begin + bytes)) return opened[i].kernel->name;
  }
  return nullptr;
}

FaultReport resolve_kernel_fault(std::uint64_t address, bool write, const RunningKernel& kernel) {
  if (granule_of(address) >= granule_count) return {};
  const SpinGuard guard(table_lock);
  const std::uint64_t word = table[granule_of(address)].load(std::memory_order_relaxed);
  if (word == 0) return absent(address);
  const Access granted = AccessSet(word).device(kernel.device);
  if (!permits(granted, write ? Access::read_write : Access::read)) return {Fault::inaccessible, granted};
  return {open_mapping(first_granule(word), kernel) ? Fault::resolved : Fault::refused, granted};
}

FaultReport describe_host_fault(std::uint64_t address) {
  if (granule_of(address) >= granule_count || !table) return {};
  const std::uint64_t word = table[granule_of(address)].load(std::memory_order_acquire);
  if (word == 0) return absent(address);
  return {Fault::inaccessible, AccessSet(word).host()};
}

}  // namespace protection
}  // namespace vmem::emu
