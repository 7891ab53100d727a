#include "trace/trace_options.hpp"

#include "base/option_parse.hpp"

namespace vmem {
namespace {

constexpr std::uint64_t kMiB = 1ull << 20;
constexpr std::uint64_t kTiB = 1ull << 40;
constexpr std::uint64_t kMostLaunches = 256;

Result<std::string> parse_file(std::string_view text) {
  if (text.empty()) return fail(VMEM_ERROR_INVALID_OPTION, "it names no file");
  return text == "off" ? std::string() : std::string(text);
}

Option<TraceOptions> trace_option() {
  return define({.name = "trace",
                 .values = "off, or a file such as train.trace",
                 .help = "Records what each launch names and what vmem does for it, for `vmem trace`; where the file "
                         "exists, to one with the process's number behind its name.",
                 .print = [](const TraceOptions& options) { return options.trace.empty() ? "off" : options.trace; }},
                &TraceOptions::trace, parse_file);
}

Option<TraceOptions> trace_limit_option() {
  return size_option({.name = "trace_limit",
                      .values = "a size from 1MiB such as 1GiB",
                      .only_with = "trace",
                      .help = "Size of the file at which the trace ends; the program runs on."},
                     &TraceOptions::trace_limit_bytes, {.least = kMiB, .most = kTiB});
}

Result<std::uint32_t> parse_epoch(std::string_view text) {
  VMEM_ASSIGN(const std::uint64_t launches, parse_count(text, kMostLaunches));
  if (launches == 0) return fail(VMEM_ERROR_INVALID_OPTION, "an epoch has at least one launch");
  return std::uint32_t(launches);
}

Option<TraceOptions> trace_epoch_option() {
  return define({.name = "trace_epoch",
                 .values = "1 to 256 launches",
                 .only_with = "trace",
                 .help = "How many launches of a stream the GPU times together; 1 times each by itself, which costs "
                         "some 5 µs a launch.",
                 .print = [](const TraceOptions& options) { return std::to_string(options.trace_epoch); }},
                &TraceOptions::trace_epoch, parse_epoch);
}

}  // namespace

std::vector<Option<TraceOptions>> trace_options() {
  return {trace_option(), trace_limit_option(), trace_epoch_option()};
}

}  // namespace vmem
