// tier: pages one after the other to a disk and back through the disk tier: sealed, written, read
// and checked. Compares with bare requests to the same disk, of the same size and depth, in a file
// allocated the same way.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/sizes.hpp"
#include "bench/bare_disk.hpp"
#include "bench/context.hpp"
#include "bench/disk_pages.hpp"
#include "runtime/options/options.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kWorkingSet = 1024 * kMiB;
constexpr std::array kPages{2 * kMiB, 8 * kMiB, 32 * kMiB};
constexpr Goal kGoal{Goal::Bound::at_least, 0.95, true, Goal::Needs::host};

Record record_of(const Context& context, const PageMemory& memory, DiskWay way, bool by_fio) {
  Record record;
  record.scenario = "tier";
  record.variant = fmt::format("{} pages, {}", format_bytes(memory.page_bytes()), way == DiskWay::out ? "out" : "in");
  record.options = {{"page_bytes", memory.page_bytes()},
                    {"working_set_bytes", memory.bytes()},
                    {"request_bytes", BareDisk::kRequestBytes},
                    {"depth", BareDisk::kDepth},
                    {"repeats", context.settings.repeats}};
  record.unit = "GB/s";
  if (by_fio) record.options["fio_page_bytes"] = BareDisk::fio_has_large_pages() ? 2 * kMiB : 4096;
  record.limit_name = by_fio ? "fio on the same disk" : "an io_uring loop on the same disk (fio is not installed)";
  record.goal = kGoal;
  return record;
}

// Many disks are fast for a moment after idling, so both sides first work for an uncounted second.
constexpr Steady kSteady{.ramp_s = 1, .timed_s = 2};

Steady steady_of(const Settings& settings) { return settings.passes == 1 ? Steady{} : kSteady; }

Status measure(Context& context, DiskPages& tier, BareDisk& bare, const PageMemory& from, const PageMemory& to,
               DiskWay way) {
  const bool by_fio = BareDisk::has_fio();
  const Steady steady = steady_of(context.settings);
  Record record = record_of(context, from, way, by_fio);
  std::uint64_t verified = 0;
  const auto limit = [&]() -> Result<double> {
    if (by_fio) return bare.fio(way, steady);
    return repeat(steady, from.bytes(), [&] { return bare.loop(way); });
  };
  Samples over_pages;
  const auto achieved = [&]() -> Result<double> {
    to.wipe();
    VMEM_ASSIGN(const double rate,
                repeat(steady, from.bytes(), [&] { return way == DiskWay::out ? tier.store(from) : tier.load(to); }));
    if (way == DiskWay::out) VMEM_TRY(tier.load(to));
    if (record.mismatch.empty()) record.mismatch = difference(from, to);
    verified += to.bytes();
    const auto requests = [&] { return bare.loop(way, way == DiskWay::out ? from.all() : to.all()); };
    if (to.bytes() >= BareDisk::kMemoryBytes) {
      VMEM_ASSIGN(const double over, repeat(steady, from.bytes(), requests));
      over_pages.add(over);
    }
    return rate;
  };
  VMEM_ASSIGN(const Measured measured, measure_shown(context, "tier " + record.variant, limit, achieved));
  record.set(measured);
  record.details["queue"] = tier.describe();
  if (over_pages.count() != 0) {
    record.details["requests_over_the_pages_gb_per_s"] = over_pages.median();
    record.notes.push_back(fmt::format("{:.3f} of the same requests over as much memory as the pages have, {:.2f} GB/s",
                                       record.achieved / over_pages.median(), over_pages.median()));
  }
  record.verified = record.mismatch.empty();
  record.details["verified_bytes"] = record.verified ? verified : 0;
  context.records.push_back(std::move(record));
  context.show_rows();
  return {};
}

}  // namespace

Status run_tier(Context& context) {
  VMEM_ASSIGN(const Options options, disk_options(context.settings));
  const StoreDirectory& directory = options.nvme.front();
  const std::uint64_t bytes = context.settings.working_set_bytes.value_or(kWorkingSet);
  std::vector<std::uint64_t> sizes(kPages.begin(), kPages.end());
  if (context.settings.page_bytes) sizes = {*context.settings.page_bytes};
  const std::uint64_t most = std::max(bytes, *std::ranges::max_element(sizes));
  VMEM_TRY(check_host_memory("tier", 2 * most + BareDisk::kMemoryBytes));
  VMEM_TRY(check_disk_room("tier", {&directory, 1}, {.tier = most, .beside = bytes}));
  context.progress.begin("writing the bare disk's file", 1);
  VMEM_ASSIGN(RequestMemory memory, in_large_pages(BareDisk::kMemoryBytes));
  VMEM_ASSIGN(const auto bare, BareDisk::create(directory.path, bytes, std::move(memory)));
  for (const std::uint64_t page_bytes : sizes) {
    const std::uint64_t pages = std::max<std::uint64_t>(bytes / page_bytes, 1);
    VMEM_ASSIGN(const PageMemory from, PageMemory::create(page_bytes, pages));
    VMEM_ASSIGN(const PageMemory to, PageMemory::create(page_bytes, pages));
    context.progress.begin("filling pages, writing them once", 1);
    from.fill(context.settings.seed);
    VMEM_ASSIGN(const auto tier, DiskPages::create({.directories = {directory},
                                                    .compress = "off",
                                                    .page_bytes = page_bytes,
                                                    .pages = pages,
                                                    .disk_bytes_s = {},
                                                    .poll = options.nvme_poll}));
    VMEM_TRY(tier->store(from));  // written once, as the bare file was
    VMEM_TRY(measure(context, *tier, *bare, from, to, DiskWay::out));
    VMEM_TRY(measure(context, *tier, *bare, from, to, DiskWay::in));
  }
  Record& last = context.records.back();
  last.notes.push_back(fmt::format("pages went through {}", last.details["queue"].get<std::string>()));
  if (BareDisk::has_fio() && !BareDisk::fio_has_large_pages())
    last.notes.emplace_back(
        "fio's memory was in 4 KiB pages, vmem's in 2 MiB ones, which is half of the difference or more; to give fio "
        "such, too: "
        "sysctl vm.nr_hugepages=48");
  return {};
}

}  // namespace vmem::bench
