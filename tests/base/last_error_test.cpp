#include "base/last_error.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace vmem {
namespace {

TEST(LastError, IsTheCallingThreadsLastMessage) {
  EXPECT_EQ(last_error::record({VMEM_ERROR_LOST, 0, "first"}), VMEM_ERROR_LOST);
  EXPECT_EQ(last_error::record({VMEM_ERROR_DRIVER, 2, "second"}), VMEM_ERROR_DRIVER);
  EXPECT_STREQ(last_error::message(), "second");

  std::string fresh = "?";
  std::thread([&] {
    fresh = last_error::message();
    (void)last_error::record({VMEM_ERROR_TIMEOUT, 0, "elsewhere"});
  }).join();
  EXPECT_EQ(fresh, "");
  EXPECT_STREQ(last_error::message(), "second");
}

TEST(LastError, OfALongMessageTheEndStaysWhichSaysWhatIsWrong) {
  (void)last_error::record(VMEM_ERROR_INVALID_OPTION,
                           "--nvme /" + std::string(5000, 'x') + ": No such file or directory");
  const std::string said = last_error::message();
  EXPECT_EQ(said.size(), 1023u);
  EXPECT_TRUE(said.starts_with("--nvme /xxx")) << said;
  EXPECT_TRUE(said.ends_with("xxx: No such file or directory")) << said;
}

TEST(LastError, IsOneLine) {
  (void)last_error::record(VMEM_ERROR_INVALID_OPTION, "a\nb\x1b");
  EXPECT_STREQ(last_error::message(), "a?b?");
}

}  // namespace
}  // namespace vmem
