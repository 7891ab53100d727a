#include "cluster/registry/etcd/endpoints.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace vmem::cluster {
namespace {

using ::testing::HasSubstr;

// Connections of one process whose only server goes away.
class EndpointsTest : public ::testing::Test {
 protected:
  std::string logged(const auto& act) {
    ::testing::internal::CaptureStderr();
    act();
    return ::testing::internal::GetCapturedStderr();
  }
  static auto lines(const std::string& text) { return std::ranges::count(text, '\n'); }

  ManualClock clock;
  RegistryOutage outage{clock};
  const EtcdAddress address = parse_etcd_address("etcd://a:1/lab").value();
};

TEST_F(EndpointsTest, ARegistryThatIsAwayIsLoggedOnceInTenSecondsByAllConnectionsTogether) {
  const std::string said = logged([&] {
    Endpoints first(address, outage), second(address, outage);
    for (int i = 0; i < 250; ++i) {
      first.failed(0, "refused");
      second.failed(0, "refused");
      Endpoints(address, outage).failed(0, "refused");  // one that asks a single thing
      clock.advance(100'000);
    }
  });
  EXPECT_EQ(lines(said), 3) << said;
  EXPECT_THAT(said, HasSubstr("etcd at http://a:1: refused; there is no other\n"));
  EXPECT_THAT(said, HasSubstr("(301 such failures in 10 s)"));
  EXPECT_THAT(said, HasSubstr("(601 such failures in 20 s)"));
}

TEST_F(EndpointsTest, ARegistryThatIsBackIsLoggedOnceWithHowLongItWasAway) {
  Endpoints first(address, outage), second(address, outage);
  logged([&] {
    first.failed(0, "refused");
    clock.advance(4'000'000);
    second.failed(0, "refused");
  });
  const std::string said = logged([&] {
    for (Endpoints* each : {&first, &second, &first}) each->answered(0);
  });
  EXPECT_EQ(lines(said), 1) << said;
  EXPECT_THAT(said, HasSubstr("etcd at http://a:1 answers again, after 2 failures in 4 s"));
}

}  // namespace
}  // namespace vmem::cluster
