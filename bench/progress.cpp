#include "bench/progress.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace vmem::bench {
namespace {

constexpr unsigned kBarCells = 30;
constexpr auto kDrawInterval = std::chrono::milliseconds(100);

}  // namespace

Progress::Progress(std::FILE* out) : out_(out), terminal_(terminal_of(fileno(out))) {}

void Progress::begin(std::string label, std::uint64_t total) {
  end();
  if (terminal_ == Terminal::none) return;
  if (terminal_ == Terminal::dumb) {
    fmt::print(out_, "{}\n", label);
    return;
  }
  label_ = std::move(label);
  total_ = total;
  done_ = 0;
  draw();
}

void Progress::advance(std::uint64_t steps) {
  if (total_ == 0) return;
  done_ = std::min(done_ + steps, total_);
  if (Clock::now() - drawn_ >= kDrawInterval) draw();
}

void Progress::end() {
  if (total_ == 0) return;
  total_ = 0;
  std::fputs("\r\x1b[K", out_);
  std::fflush(out_);
}

void Progress::draw() {
  drawn_ = Clock::now();
  const auto cells = static_cast<unsigned>(total_ ? done_ * kBarCells / total_ : 0);
  const std::string bar = std::string(cells, '#') + std::string(kBarCells - cells, '.');
  const std::string line = fmt::format("\r[{}] {:3} % {}\x1b[K", bar, total_ ? done_ * 100 / total_ : 0, label_);
  std::fputs(line.c_str(), out_);
  std::fflush(out_);
}

}  // namespace vmem::bench
