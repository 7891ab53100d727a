// lookup: address to page over a range of 1 TiB full of regions, at random places. No call of the public interface does only
// that, so the page table is used directly, without a GPU. Also what the page table costs: bytes a page, and the time to
// reserve 1 TiB.
#include <fmt/format.h>

#include <memory>
#include <vector>

#include "bench/context.hpp"
#include "bench/kernels/word.hpp"
#include "bench/runtime.hpp"
#include "bench/samples.hpp"
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

// Nanoseconds of a lookup, one sample a batch.
Samples time_lookups(const AddressSpace& space, const std::vector<std::uintptr_t>& addresses) {
  Samples samples;
  for (std::size_t first = 0; first + kBatch <= addresses.size(); first += kBatch) {
    std::uintptr_t seen = 0;
    const Stopwatch watch;
    for (std::size_t i = first; i < first + kBatch; ++i)
      seen ^= reinterpret_cast<std::uintptr_t>(find_page(space, addresses[i]));
    asm volatile("" : : "r"(seen));  // or the loop is dropped
    samples.add(watch.nanoseconds() / kBatch);
  }
  return samples;
}

// What each address must lead to, from the region's own bounds. Empty when all do.
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
  record.goal = Goal{Goal::Bound::at_most, 10, false};
  time_lookups(*space, addresses);
  const Samples samples = time_lookups(*space, addresses);
  record.achieved = samples.median();
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
  record.achieved = samples.median();
  context.records.push_back(std::move(record));
  return {};
}

// What one more page costs: the growth of the metadata with a region of smallest pages.
Status add_metadata(Context& context) {
  Settings settings = context.settings;
  settings.page_bytes = pagetable::kGranuleBytes;
  if (!settings.hbm_bytes && !context.gpu.emulated())
    settings.hbm_bytes = std::uint64_t{256} << 20;  // 512 pages are enough
  VMEM_ASSIGN(const Sizes sizes, plan_sizes(settings, context.gpu, 4));
  VMEM_ASSIGN(const Session session, Session::start(settings, sizes, context.gpu));
  VMEM_ASSIGN(const vmem_statistics before, read_statistics());
  VMEM_ASSIGN(const Region region, Region::allocate(sizes.working_set_bytes, context.gpu.ordinal(), nullptr));
  VMEM_ASSIGN(const vmem_statistics after, read_statistics());
  Record record = start_record(context, "metadata", "B/page");
  const std::uint64_t pages = after.pages - before.pages;
  if (pages == 0) return fail(VMEM_ERROR_INTERNAL, "vmem_stats counts no pages after an allocation");
  record.goal = Goal{Goal::Bound::at_most, 128, false};
  record.achieved = static_cast<double>(after.metadata_bytes - before.metadata_bytes) / static_cast<double>(pages);
  record.details["pages"] = pages;
  record.details["fixed_bytes"] = before.metadata_bytes;
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
