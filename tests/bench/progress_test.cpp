#include "bench/progress.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

namespace vmem::bench {
namespace {

constexpr const char* kWiped = "\r\x1b[K";

void work(std::FILE* out, const char* kind = "xterm") {
  ::setenv("TERM", kind, 1);
  Progress progress(out);
  progress.begin("streaming", 100);
  progress.advance(50);
  progress.end();
}

TEST(Progress, DrawsABarOnATerminalAndWipesIt) {
  int main_side = -1;
  int terminal = -1;
  ASSERT_EQ(openpty(&main_side, &terminal, nullptr, nullptr, nullptr), 0);
  std::FILE* out = fdopen(terminal, "w");
  work(out);
  // The line discipline splits the output arbitrarily; its own processing (\r
  // ) does not matter here.
  std::string drawn;
  char text[4096];
  while (!drawn.ends_with(kWiped)) {
    pollfd ready{.fd = main_side, .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&ready, 1, 10'000), 1) << "the bar is left behind: " << drawn;
    const ssize_t got = read(main_side, text, sizeof text);
    ASSERT_GT(got, 0);
    drawn.append(text, static_cast<std::size_t>(got));
  }
  EXPECT_NE(drawn.find("streaming"), std::string::npos);
  EXPECT_NE(drawn.find('['), std::string::npos);
  std::fclose(out);
  close(main_side);
}

TEST(Progress, WritesNoControlSequencesOnADumbTerminal) {
  int main_side = -1;
  int terminal = -1;
  ASSERT_EQ(openpty(&main_side, &terminal, nullptr, nullptr, nullptr), 0);
  std::FILE* out = fdopen(terminal, "w");
  work(out, "dumb");
  std::fclose(out);
  std::array<char, 4096> text{};
  const ssize_t got = read(main_side, text.data(), text.size());
  ASSERT_GT(got, 0);
  EXPECT_EQ(std::string(text.data(), static_cast<std::size_t>(got)), "streaming\r\n");
  close(main_side);
}

TEST(Progress, WritesNothingIntoAFile) {
  std::FILE* out = std::tmpfile();
  ASSERT_NE(out, nullptr);
  work(out);
  EXPECT_EQ(std::ftell(out), 0);
  std::fclose(out);
}

}  // namespace
}  // namespace vmem::bench
