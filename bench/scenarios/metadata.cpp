#include "bench/scenarios/metadata.hpp"

#include <fmt/format.h>
#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "base/sizes.hpp"
#include "bench/pattern.hpp"
#include "bench/runtime.hpp"
#include "bench/second_node.hpp"
#include "pagetable/types.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kPageBytes = pagetable::kGranuleBytes;  // the smallest
constexpr std::uint64_t kPages = 256;
constexpr std::uint64_t kPagesOnce = 128;  // with --passes 1
constexpr std::uint64_t kHbmBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kHostBytes = std::uint64_t{64} << 20;
// Larger allocations are buffers: no table of so few pages is as large.
constexpr int kLargeAllocation = 64 << 10;
constexpr Goal kGoal{Goal::Bound::at_most, 128, false, Goal::Needs::host};

// A directory of its own, removed with its contents.
class TemporaryDirectory {
 public:
  static Result<TemporaryDirectory> create() {
    std::string path = std::filesystem::temp_directory_path() / "vmem-bench-XXXXXX";
    if (::mkdtemp(path.data()) != nullptr) return TemporaryDirectory(std::move(path));
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("no directory can be made in {}", path), errno);
  }
  TemporaryDirectory(TemporaryDirectory&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;  // what is left is the system's to clean
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Bytes that this process has from malloc, without buffers: its tables, those that vmem_stats does
// not count, and the driver's. In a build whose allocator does not say, 0.
std::uint64_t table_bytes() { return mallinfo2().uordblks; }

struct Kept {
  std::uint64_t pages = 0, tables = 0, counted = 0;
};

Result<Kept> kept_now() {
  VMEM_ASSIGN(const vmem_statistics statistics, quiet_statistics());
  return Kept{statistics.pages, table_bytes(), statistics.metadata_bytes};
}

double per_page(std::uint64_t before, std::uint64_t after, std::uint64_t pages) {
  return (static_cast<double>(after) - static_cast<double>(before)) / static_cast<double>(pages);
}

// Writes every page, then reads every page: it has been in each tier, and a copy may be in several.
Result<Region> used_region(Context& context, const Stream& stream, std::uint64_t pages) {
  VMEM_ASSIGN(Region region, Region::allocate(pages * kPageBytes, context.gpu.ordinal(), stream.get()));
  VMEM_TRY(fill_region(context, region, stream, context.settings.seed));
  VMEM_ASSIGN(const std::string wrong, verify_region(context, region, stream, context.settings.seed, 0));
  if (!wrong.empty()) return fail(VMEM_ERROR_INTERNAL, wrong);
  return region;
}

// What the second half of the pages adds: fixed costs, and the driver's own for the frames of full
// budgets, are there before.
Status add_growth(Context& context, const Sizes& sizes, const char* variant, std::uint64_t pages) {
  VMEM_ASSIGN(const Session session, Session::start(context.settings, sizes, context.gpu));
  VMEM_ASSIGN(const Stream stream, make_stream(context.gpu));
  VMEM_ASSIGN(const Region first, used_region(context, stream, pages));
  VMEM_ASSIGN(const Kept before, kept_now());
  VMEM_ASSIGN(const Region second, used_region(context, stream, pages));
  VMEM_ASSIGN(const Kept after, kept_now());
  VMEM_ASSIGN(const vmem_statistics statistics, read_statistics());
  if (after.pages == before.pages) return fail(VMEM_ERROR_INTERNAL, "vmem_stats counts no pages after an allocation");
  const std::uint64_t added = after.pages - before.pages;
  const double counted = per_page(before.counted, after.counted, added);
  const double tables = per_page(before.tables, after.tables, added);
  Record record;
  record.scenario = "lookup";
  record.variant = variant;
  record.unit = "B/page";
  record.options = {{"page_bytes", kPageBytes}, {"seed", context.settings.seed}};
  record.verified = true;
  record.goal = kGoal;
  record.achieved = counted;
  record.details["all_small_allocations"] = tables;
  record.details["pages"] = added;
  record.details["fixed_bytes"] = before.counted;
  record.details["node_used_bytes"] = statistics.remote_used_bytes;
  record.details["disk_used_bytes"] = statistics.nvme_used_bytes;
  record.notes.push_back(fmt::format(
      "{}: as vmem_stats counts it, without the tiers' own tables; small allocations of the whole process, the "
      "driver's included, grew by {:.0f} bytes a page; {} on a node, {} on disk",
      variant, tables, format_bytes(statistics.remote_used_bytes), format_bytes(statistics.nvme_used_bytes)));
  context.records.push_back(std::move(record));
  return {};
}

// These settings without the options that name tiers.
Settings without_tiers(const Settings& given) {
  Settings settings = given;
  settings.page_bytes = kPageBytes;
  settings.chunk_bytes.reset();
  for (const char* name : {"nvme", "remote", "peers"}) {
    std::erase_if(settings.runtime_options, [&](const auto& each) { return each.first == name; });
    settings.runtime_options.emplace_back(name, "off");
  }
  return settings;
}

void set_option(Settings& settings, const std::string& name, std::string value) {
  std::ranges::find(settings.runtime_options, name, &std::pair<std::string, std::string>::first)->second =
      std::move(value);
}

// Pages lie in HBM, host memory, a second node's memory and files.
Status add_with_every_tier(Context& context, std::uint64_t pages) {
  Settings settings = without_tiers(context.settings);
  VMEM_ASSIGN(const TemporaryDirectory directory, TemporaryDirectory::create());
  set_option(settings, "nvme", fmt::format("{}:{}", directory.path(), 4 * pages * kPageBytes));
  // A quarter of the first half: the rest, and what is measured, goes on to files.
  auto node = SecondNode::start(settings, pages / 4 * kPageBytes);
  if (node) set_option(settings, "remote", node->address());
  Context part = context.with(settings);
  VMEM_TRY(add_growth(part, {.hbm_bytes = kHbmBytes, .host_bytes = kHostBytes}, "metadata, every tier", pages));
  if (!node) context.records.back().notes.push_back("without a second node: " + node.error().message);
  return {};
}

}  // namespace

Status add_metadata(Context& context) {
  (void)mallopt(M_MMAP_THRESHOLD, kLargeAllocation);  // keeps buffers out of table_bytes()
  const std::uint64_t pages = context.settings.passes == 1 ? kPagesOnce : kPages;
  const Settings settings = without_tiers(context.settings);
  Context part = context.with(settings);
  const Sizes sizes{.hbm_bytes = kHbmBytes, .host_bytes = 2 * pages * kPageBytes + kHostBytes};
  VMEM_TRY(add_growth(part, sizes, "metadata", pages));
  return add_with_every_tier(context, pages);
}

}  // namespace vmem::bench
