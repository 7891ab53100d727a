#include "bench/progress.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <string>

namespace vmem::bench {
namespace {

void work(std::FILE* out) {
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
  char text[4096] = "";
  const ssize_t got = read(main_side, text, sizeof(text) - 1);
  ASSERT_GT(got, 0);
  const std::string drawn(text, static_cast<std::size_t>(got));
  EXPECT_NE(drawn.find("streaming"), std::string::npos);
  EXPECT_NE(drawn.find('['), std::string::npos);
  EXPECT_TRUE(drawn.ends_with("\r\x1b[K")) << "the bar is left behind";
  std::fclose(out);
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
