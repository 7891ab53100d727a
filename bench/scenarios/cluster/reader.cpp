// reader: a process that reads published regions as its standard input says, a line for each step:
// "open NAME", "read", "close". Each is answered by a line on standard output.
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <optional>
#include <string>

#include "bench/scenarios/cluster/rows.hpp"

namespace vmem::bench {
namespace {

constexpr std::string_view kOpen = "open ";

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

Result<std::string> read_once(RegionReader& reader, const Region& region) {
  VMEM_ASSIGN(const vmem_published_statistics before, read_published_statistics());
  VMEM_ASSIGN(const double seconds, reader.read(region));
  VMEM_ASSIGN(const vmem_published_statistics after, read_published_statistics());
  return fmt::format("read {} {} {}", seconds, after.fetched_bytes - before.fetched_bytes, reader.mismatch());
}

}  // namespace

Status run_reader(Context& context) {
  const Settings& settings = context.settings;
  const Sizes sizes = sizes_in_memory(settings, context.gpu, working_set_bytes(settings));
  VMEM_ASSIGN(const Session session, Session::start(settings, sizes, context.gpu));
  VMEM_ASSIGN(RegionReader reader, RegionReader::create(context));
  std::optional<Region> region;
  say("ready");
  for (std::string line; std::getline(std::cin, line);) {
    if (line.starts_with(kOpen)) {
      VMEM_ASSIGN(Region opened, Region::open(line.substr(kOpen.size()), context.gpu.ordinal()));
      region.emplace(std::move(opened));
      reader.expect(*region);
      say("opened");
    } else if (line == "read" && region) {
      VMEM_ASSIGN(const std::string answer, read_once(reader, *region));
      say(answer);
    } else if (line == "close") {
      region.reset();
      say("closed");
    } else {
      return fail(VMEM_ERROR_INVALID_OPTION,
                  fmt::format("reader: '{}': accepted: open NAME, read (of what is open), close", line));
    }
  }
  return {};
}

}  // namespace vmem::bench
