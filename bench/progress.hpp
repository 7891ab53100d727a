// A progress bar on standard error if that is a terminal, else nothing. On a dumb terminal, which
// cannot redraw a line, each step's label is a line.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "base/terminal.hpp"

namespace vmem::bench {

class Progress {
 public:
  // Writes only if `out` is a terminal.
  explicit Progress(std::FILE* out);
  ~Progress() { end(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void begin(std::string label, std::uint64_t total);
  // Cheap enough for a measured loop: reads the clock, draws ten times a second.
  void advance(std::uint64_t steps = 1);
  void end();  // wipes the bar

 private:
  void draw();

  using Clock = std::chrono::steady_clock;
  std::FILE* const out_;
  const Terminal terminal_;
  std::string label_;
  std::uint64_t total_ = 0;
  std::uint64_t done_ = 0;
  Clock::time_point drawn_;
};

}  // namespace vmem::bench
