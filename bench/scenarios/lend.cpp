// lend: pages to and from a daemon's HBM, against the same pages to and from a daemon's memory.
// Each daemon is a child process; both share this machine's cores and the GPU of --device. Pages go
// through the remote tier with as many in flight as the mover has.
#include "bench/scenarios/lend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/sizes.hpp"
#include "bench/remote_pages.hpp"
#include "bench/second_node.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kWorkingSet = 512 * kMiB;
constexpr std::array kPages{2 * kMiB, 32 * kMiB};
constexpr Goal kGoal{Goal::Bound::at_least, 0.90, true};
constexpr Steady kSteady{.ramp_s = 0.1, .timed_s = 0.5};

enum class Way : std::uint8_t { out, in };

struct Sides {
  const SecondNode& hbm_node;
  RemotePages& memory;
  RemotePages& hbm;
  const PageMemory& from;
  const PageMemory& to;
};

// What was stored is loaded again: the bytes have to be the same.
Result<double> rate_of(const Sides& sides, RemotePages& tier, Way way, Steady steady, Record& record) {
  sides.to.wipe();
  VMEM_ASSIGN(const double rate, repeat(steady, sides.from.bytes(), [&] {
                return way == Way::out ? tier.store(sides.from) : tier.load(sides.to);
              }));
  if (way == Way::out) VMEM_TRY(tier.load(sides.to));
  if (record.mismatch.empty()) record.mismatch = difference(sides.from, sides.to);
  return rate;
}

// By which path the row's pages came back: for pages out, those that were verified.
Status add_sends(Record& record, const SecondNode& node, const SecondNode::HbmSends& before) {
  VMEM_ASSIGN(const SecondNode::HbmSends after, node.hbm_sends());
  const std::uint64_t direct = after.direct - before.direct, staged = after.staged - before.staged;
  record.details["pages_sent_directly"] = direct;
  record.details["pages_sent_through_staging"] = staged;
  record.notes.push_back(
      fmt::format("the daemon sent {} pages back directly from HBM, {} through staging", direct, staged));
  return {};
}

Status measure(Context& context, const LendRows& rows, const Sides& sides, Way way) {
  const Steady steady = context.settings.passes == 1 ? Steady{} : kSteady;
  Record record;
  record.scenario = rows.scenario;
  record.variant = fmt::format("{}{} pages to HBM, {}", rows.prefix, format_bytes(sides.from.page_bytes()),
                               way == Way::out ? "out" : "in");
  record.options = {{"page_bytes", sides.from.page_bytes()},
                    {"working_set_bytes", sides.from.bytes()},
                    {"node", sides.hbm.describe()},
                    {"repeats", context.settings.repeats}};
  record.unit = "GB/s";
  record.limit_name = "pages of a daemon's memory";
  record.limit_is = Record::LimitIs::reference;
  record.goal = kGoal;
  VMEM_ASSIGN(const SecondNode::HbmSends before, sides.hbm_node.hbm_sends());
  VMEM_ASSIGN(const Measured measured, measure_shown(
                                           context, record.scenario + " " + record.variant,
                                           [&] { return rate_of(sides, sides.memory, way, steady, record); },
                                           [&] { return rate_of(sides, sides.hbm, way, steady, record); }));
  record.set(measured);
  record.verified = record.mismatch.empty();
  record.details["verified_bytes"] = record.verified ? sides.to.bytes() : 0;
  VMEM_TRY(add_sends(record, sides.hbm_node, before));
  context.records.push_back(std::move(record));
  context.show_rows();
  return {};
}

Result<Options> options_to(const Settings& settings, const SecondNode& node) {
  Settings to = settings;
  std::erase_if(to.runtime_options, [](const auto& option) { return option.first == "remote"; });
  to.runtime_options.emplace_back("remote", node.address());
  return remote_options(to);
}

}  // namespace

Status measure_lending(Context& context, const LendRows& rows) {
  const Settings& settings = context.settings;
  const std::uint64_t bytes = settings.working_set_bytes.value_or(kWorkingSet);
  std::vector<std::uint64_t> sizes(kPages.begin(), kPages.end());
  if (settings.page_bytes) sizes = {*settings.page_bytes};
  const std::uint64_t most = std::max(bytes, std::ranges::max(sizes));
  // Here twice, and at the daemon that lends memory.
  VMEM_TRY(check_host_memory(rows.scenario, 3 * most));
  context.progress.begin("starting the daemons", 1);
  VMEM_ASSIGN(const SecondNode memory_node, SecondNode::start(settings, most));
  VMEM_ASSIGN(const SecondNode hbm_node, SecondNode::start_with_hbm(settings, context.gpu, most));
  VMEM_ASSIGN(const Options to_memory, options_to(settings, memory_node));
  VMEM_ASSIGN(const Options to_hbm, options_to(settings, hbm_node));
  for (const std::uint64_t page_bytes : sizes) {
    const std::uint64_t pages = std::max<std::uint64_t>(bytes / page_bytes, 1);
    VMEM_ASSIGN(const PageMemory from, PageMemory::create(page_bytes, pages));
    VMEM_ASSIGN(const PageMemory to, PageMemory::create(page_bytes, pages));
    from.fill(settings.seed);
    VMEM_ASSIGN(const auto memory, RemotePages::create(to_memory, page_bytes, pages));
    VMEM_ASSIGN(const auto in_hbm, RemotePages::create(to_hbm, page_bytes, pages, context.gpu.driver_ref()));
    const Sides sides{hbm_node, *memory, *in_hbm, from, to};
    VMEM_TRY(memory->store(from));  // first touch of the daemons' memory
    VMEM_TRY(in_hbm->store(from));
    VMEM_TRY(measure(context, rows, sides, Way::out));
    VMEM_TRY(measure(context, rows, sides, Way::in));
  }
  return {};
}

Status run_lend(Context& context) { return measure_lending(context, {.scenario = "lend", .prefix = ""}); }

}  // namespace vmem::bench
