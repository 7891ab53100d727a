// Rows of a program whose pages overflow to a daemon: to its memory, and to its HBM. The stream
// scenario runs over each daemon, against bare messages. The rows of the lend scenario compare the
// two media.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "bench/scenarios/cluster/rows.hpp"
#include "bench/scenarios/lend.hpp"
#include "bench/second_node.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kLeast = 64 * kMiB;  // of HBM and of host memory
constexpr double kRatio = 4;                 // of the region to both
// A sample's bytes on a GPU; the stream scenario alone takes longer.
constexpr std::uint64_t kSampleBytes = 8192 * kMiB;
constexpr std::uint64_t kMostLent = 1024 * kMiB;  // where the two media are compared

// A quarter of the working set is here, in HBM and host memory; the rest overflows.
Settings stream_settings(const Context& context) {
  Settings settings = context.settings;
  const std::uint64_t bytes = working_set_bytes(settings);
  settings.working_set_bytes.reset();
  settings.ratio = kRatio;
  if (!settings.hbm_bytes) settings.hbm_bytes = std::max(bytes / 8 / kMiB * kMiB, kLeast);
  if (!settings.host_bytes) settings.host_bytes = std::max(*settings.hbm_bytes, kLeast);
  if (settings.passes == 0 && !context.gpu.emulated())
    settings.passes = static_cast<int>(std::max<std::uint64_t>(kSampleBytes / bytes, 2));
  std::erase_if(settings.runtime_options,
                [](const auto& option) { return option.first == "remote" || option.first == "cluster"; });
  return settings;
}

Status stream_over(Context& context, Settings settings, const SecondNode& node, const char* medium) {
  settings.runtime_options.emplace_back("remote", node.address());
  const std::size_t before = context.records.size();
  Context part = context.with(settings);
  const Status status = run_stream(part);
  for (Record& record : std::span(context.records).subspan(before)) {
    record.scenario = "cluster";
    record.variant = fmt::format("overflow to {}, {}", medium, record.variant);
    // The note names its row.
    for (std::string& note : record.notes) note = note.substr(note.find(": ") + 2);
  }
  context.show_rows();
  return status;
}

}  // namespace

Status measure_overflow(Context& context) {
  const Settings settings = stream_settings(context);
  const auto room = static_cast<std::uint64_t>(double(*settings.hbm_bytes + *settings.host_bytes) * kRatio);
  {
    VMEM_ASSIGN(const SecondNode memory, SecondNode::start(settings, room));
    VMEM_TRY(stream_over(context, settings, memory, "memory"));
  }
  {
    VMEM_ASSIGN(const SecondNode hbm, SecondNode::start_with_hbm(settings, context.gpu, room));
    VMEM_TRY(stream_over(context, settings, hbm, "HBM"));
  }
  Settings lending = context.settings;
  lending.working_set_bytes = std::min(working_set_bytes(lending), kMostLent);
  std::erase_if(lending.runtime_options, [](const auto& option) { return option.first == "cluster"; });
  Context part = context.with(lending);
  return measure_lending(part, {.scenario = "cluster", .prefix = "overflow, "});
}

}  // namespace vmem::bench
