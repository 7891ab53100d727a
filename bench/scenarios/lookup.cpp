// lookup: address to page at random places of 1 TiB full of regions. No public call does only that,
// so the scenario uses the page table directly, without a GPU. Also measures the time to reserve
// 1 TiB, and what pages cost (metadata.cpp).
#include <fmt/format.h>

#include <memory>
#include <vector>

#include "bench/context.hpp"
#include "bench/kernels/word.hpp"
#include "bench/samples.hpp"
#include "bench/scenarios/metadata.hpp"
#include "pagetable/address_space.hpp"

namespace vmem::bench {
namespace {

using pagetable::AddressSpace;

constexpr std::uintptr_t kBase = 0x7e8000000000;  // never accessed, only looked up
constexpr std::uint64_t kSpaceBytes = std::uint64_t{1} << 40;
constexpr std::uint32_t kRegionGranules = 512;  // 1 GiB
constexpr std::uint32_t kPageShift = 1;         // 4 MiB pages
constexpr std::size_t kAddresses = std::size_t{1} << 18;
constexpr std::size_t kBatch = 256;

Result<std::unique_ptr<AddressSpace>> full_space() {
  VMEM_ASSIGN(auto space, AddressSpace::create(kBase, kSpaceBytes));
  while (space->free_bytes() > 0) {
    VMEM_ASSIGN(pagetable::Region* const region, space->add(kRegionGranules, kPageShift));
    region->state.store(pagetable::RegionState::live);
  }
  return space;
}

std::vector<std::uintptr_t> random_addresses(std::uint64_t seed) {
  std::vector<std::uintptr_t> addresses(kAddresses);
  for (std::size_t i = 0; i < kAddresses; ++i) addresses[i] = kBase + random_line(seed, i, kSpaceBytes);
  return addresses;
}

const pagetable::Page* find_page(const AddressSpace& space, std::uintptr_t address) {
  const std::uint32_t granule = space.granule_at(address);
  const pagetable::Region* region = space.region_at(granule);
  return region ? &region->pages[region->page_at(granule)] : nullptr;
}

// Nanoseconds of a lookup, one sample per batch.
Samples time_lookups(const AddressSpace& space, const std::vector<std::uintptr_t>& addresses) {
  Samples samples;
  for (std::size_t first = 0; first + kBatch <= addresses.size(); first += kBatch) {
    std::uintptr_t seen = 0;
    const Stopwatch watch;
    for (std::size_t i = first; i < first + kBatch; ++i)
      seen ^= reinterpret_cast<std::uintptr_t>(find_page(space, addresses[i]));
    asm volatile("" : : "r"(seen));  // keeps the loop
    samples.add(watch.nanoseconds() / kBatch);
  }
  return samples;
}

// Checks each lookup against the region's own bounds. Returns the error, or an empty string.
std::string check_lookups(const AddressSpace& space, const std::vector<std::uintptr_t>& addresses) {
  for (const std::uintptr_t address : addresses) {
    const std::uint32_t granule = static_cast<std::uint32_t>((address - kBase) >> pagetable::kGranuleShift);
    const pagetable::Region* region = space.region_at(granule);
    const pagetable::Page* page = find_page(space, address);
    if (!region || granule < region->first.index || granule >= region->end_granule())
      return fmt::format("address {:#x} leads to a region that does not hold it", address);
    const auto index = static_cast<std::uint32_t>(page - region->pages.get());
    const std::uint32_t first = region->granule_of(index);
    if (index >= region->page_count || granule < first || granule >= first + (1u << region->page_shift))
      return fmt::format("address {:#x} leads to page {} of its region, which does not hold it", address, index);
  }
  return {};
}

Record start_record(Context& context, const char* variant, const char* unit) {
  Record record;
  record.scenario = "lookup";
  record.variant = variant;
  record.unit = unit;
  record.options = {{"space_bytes", kSpaceBytes}, {"seed", context.settings.seed}};
  record.verified = true;
  return record;
}

Status add_lookup(Context& context) {
  VMEM_ASSIGN(const auto space, full_space());
  const auto addresses = random_addresses(context.settings.seed);
  Record record = start_record(context, "address to page, 1 TiB", "ns");
  record.goal = Goal{Goal::Bound::at_most, 10, false, Goal::Needs::host};
  time_lookups(*space, addresses);
  const Samples samples = time_lookups(*space, addresses);
  record.set_achieved(samples);
  record.details["p99_ns"] = samples.quantile(0.99);
  record.details["lookups"] = kAddresses;
  record.mismatch = check_lookups(*space, addresses);
  record.verified = record.mismatch.empty();
  context.records.push_back(std::move(record));
  return {};
}

Status add_reserve(Context& context) {
  Samples samples;
  for (int i = 0; i < context.settings.repeats; ++i) {
    CUdeviceptr address = 0;
    const Stopwatch watch;
    BENCH_CALL(context.gpu, cuMemAddressReserve, &address, kSpaceBytes, 0, 0, 0);
    const auto space = AddressSpace::create(address, kSpaceBytes);
    samples.add(watch.seconds() * 1e3);
    BENCH_CALL(context.gpu, cuMemAddressFree, address, kSpaceBytes);
    if (!space) return std::unexpected(space.error());
  }
  Record record = start_record(context, "reserve 1 TiB", "ms");
  record.goal = Goal{Goal::Bound::at_most, 100, false};
  record.set_achieved(samples);
  context.records.push_back(std::move(record));
  return {};
}

}  // namespace

Status run_lookup(Context& context) {
  VMEM_TRY(add_lookup(context));
  VMEM_TRY(add_reserve(context));
  return add_metadata(context);
}

}  // namespace vmem::bench
