#include "base/library.hpp"

#include <gmock/gmock.h>

namespace vmem {
namespace {

using ::testing::HasSubstr;

TEST(Library, OneThatIsMissingIsNamedWithWhatToInstall) {
  const auto opened = open_library("libnobody-has-this.so.1", "install it");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().status, VMEM_ERROR_UNSUPPORTED);
  EXPECT_THAT(opened.error().message, HasSubstr("libnobody-has-this.so.1 cannot be loaded"));
  EXPECT_THAT(opened.error().message, HasSubstr("install it"));
  const auto libc = open_library("libc.so.6", "");
  ASSERT_TRUE(libc);
  EXPECT_THAT(find_function(*libc, "nobody_has_this", "take a newer one").error().message,
              HasSubstr("libc.so.6 lacks nobody_has_this; take a newer one"));
}

}  // namespace
}  // namespace vmem
