// What a registry's server refuses: writes whose outcome is forgotten, and too many first records.
#include <fmt/format.h>
#include "cluster/enrollment/serial_counter.hpp"
#include "cluster/registry/registry_conformance.hpp"
#include "cluster/registry/served/record_codec.hpp"
#include "cluster/registry/served/served_world.hpp"

namespace vmem::cluster {
namespace {

using ::testing::HasSubstr;

class ServedLimitsTest : public ::testing::Test {
 protected:
  ServedDaemon daemon;
};

// A copy of its message may come as late as that, and what it wrote may have been changed since.
TEST_F(ServedLimitsTest, AWriteWhoseOutcomeIsForgottenIsNotCarriedOutAgain) {
  daemon.start();
  using namespace served;
  const auto ask = [&](decltype(Question::what) what) {
    return *decode_answer(daemon.server->answer(
        "key-1", encode(Question{.client = 1, .number = 1, .cluster = "test", .what = std::move(what)})));
  };
  const Answer opened = ask(Open{});
  const auto write = [&](std::uint64_t order, const std::string& value) {
    const std::string bytes = encode_write(Commit{.conditions = {}, .edits = {put("a", value)}});
    return ask(WritePiece{.session = {opened.incarnation, std::get<Opened>(opened.what).session},
                          .order = order,
                          .total = static_cast<std::uint32_t>(bytes.size()),
                          .offset = 0,
                          .bytes = bytes});
  };
  const auto is_declined = [](const Answer& answer) {
    const auto* const declined = std::get_if<Declined>(&answer.what);
    return declined != nullptr && declined->why.status == VMEM_ERROR_TIMEOUT &&
           declined->why.message.contains("outcome is forgotten");
  };
  for (std::uint64_t order = 1; order <= kWriteWindow; ++order)
    ASSERT_TRUE(std::holds_alternative<Outcome>(write(order, "early").what));
  EXPECT_TRUE(std::holds_alternative<Outcome>(write(1, "again").what)) << "known still";
  ASSERT_TRUE(std::holds_alternative<Outcome>(write(kWriteWindow + 1, "late").what));
  EXPECT_TRUE(is_declined(write(1, "again")));
  EXPECT_TRUE(std::holds_alternative<Outcome>(write(2, "again").what)) << "known still";
  const Answer read = ask(FetchPage{.prefix = "a"});
  ASSERT_TRUE(std::holds_alternative<Page>(read.what));
  EXPECT_TRUE(std::get<Page>(read.what).bytes.contains("late"));
}

TEST_F(ServedLimitsTest, TheFirstRecordsOfAClusterAreBoundedToo) {
  const auto start = [&] {
    return RegistryServer::create(
        daemon.clock,
        {.started_us = ServedDaemon::kStartedUs, .limits = daemon.limits, .first_records = daemon.first_records});
  };
  daemon.first_records = [](std::uint64_t) { return std::vector{put("a", "1"), put("b", "22")}; };
  daemon.limits.each.records = 1;
  const auto many = start();
  ASSERT_FALSE(many);
  EXPECT_EQ(many.error().status, VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(many.error().message, HasSubstr("begins with 2 records of 5 bytes, and may have 1 of"));
  daemon.limits.each.records = 2;
  daemon.limits.each.bytes = 4;
  EXPECT_THAT(start().error().message, HasSubstr("may have 2 of 4 bytes"));
  daemon.limits.each.bytes = 5;
  EXPECT_TRUE(start());
}

}  // namespace
}  // namespace vmem::cluster
