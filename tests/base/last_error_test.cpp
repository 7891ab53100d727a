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

}  // namespace
}  // namespace vmem
