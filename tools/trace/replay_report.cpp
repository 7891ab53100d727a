#include <fmt/format.h>

#include "tools/trace/reports.hpp"

namespace vmem::tools {

std::string words_of(const replay::Measured& measured) {
  const auto ms = [](std::uint64_t ns) { return double(ns) / 1e6; };
  const auto gib = [](std::uint64_t bytes) { return double(bytes) / double(std::uint64_t{1} << 30); };
  std::string text = fmt::format("{} launches in {:.1f} ms, of which the GPU computes {:.1f}\n", measured.launches,
                                 ms(measured.time_ns), ms(measured.gpu_ns));
  text += fmt::format("  in  {:8.3f} GiB, link busy {:7.1f} ms; {:.3f} GiB of it ahead of need\n",
                      gib(measured.in_bytes), ms(measured.in_busy_ns), gib(measured.ahead_bytes));
  text += fmt::format("  out {:8.3f} GiB, link busy {:7.1f} ms\n", gib(measured.out_bytes), ms(measured.out_busy_ns));
  text += fmt::format("  {} maps, {} unmaps, {} frames made; mover busy {:.1f} ms\n", measured.maps, measured.unmaps,
                      measured.frames_made, ms(measured.mover_busy_ns));
  text += fmt::format("  {} waits of launches, {:.1f} ms\n", measured.waits, ms(measured.waited_ns));
  if (measured.wrong_loads != 0) text += fmt::format("  {} pages came back with old contents\n", measured.wrong_loads);
  return text;
}

}  // namespace vmem::tools
