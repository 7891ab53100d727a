// A client of the registry that waits: which reply belongs to which request.
#include "runtime/cluster/registry_client.hpp"

#include <gtest/gtest.h>

#include <utility>

namespace vmem::runtime {
namespace {

using cluster::Reply;
using cluster::RequestId;

constexpr std::uint64_t kLongUs = 60'000'000;

// Takes requests, and has the replies that the test gives it.
class Scripted final : public cluster::Registry {
 public:
  explicit Scripted(std::function<void()> on_ready) : on_ready_(std::move(on_ready)) {}
  RequestId post(cluster::RegistryRequest) override {
    const RequestId id{++posted};
    if (on_post) on_post(id);
    return id;
  }
  void poll(std::vector<Reply>& replies) override {
    for (Reply& each : std::exchange(replies_, {})) replies.push_back(std::move(each));
  }
  void say(RequestId request, decltype(Reply::what) what) {
    replies_.push_back({.request = request, .revision = {}, .what = std::move(what)});
    on_ready_();
  }
  std::uint64_t posted = 0;
  std::function<void(RequestId)> on_post;

 private:
  std::function<void()> on_ready_;
  std::vector<Reply> replies_;
};

struct RegistryClientTest : ::testing::Test {
  void open(std::uint64_t most_us) {
    client = *RegistryClient::open(
        [this](std::function<void()> on_ready) -> Result<std::unique_ptr<cluster::Registry>> {
          auto made = std::make_unique<Scripted>(std::move(on_ready));
          registry = made.get();
          return made;
        },
        most_us);
  }
  std::unique_ptr<RegistryClient> client;
  Scripted* registry = nullptr;
};

TEST_F(RegistryClientTest, AReplyToAnotherRequestIsNotThisOnes) {
  open(kLongUs);
  registry->on_post = [&](RequestId id) {
    registry->say(RequestId{999}, cluster::Committed{.done = true});
    registry->say(id, cluster::Read{.records = {{.key = "a", .value = "b", .modified = {}, .lease = {}}}});
  };
  const auto read = client->read("a");
  ASSERT_TRUE(read) << read.error().message;
  ASSERT_EQ(read->size(), 1u);
}

TEST_F(RegistryClientTest, AReplyAfterItsTimeIsNotTheNextRequests) {
  open(20'000);
  const auto late = client->commit({});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().status, VMEM_ERROR_TIMEOUT);
  registry->say(RequestId{1}, cluster::Committed{.done = true});
  const std::uint64_t posted = registry->posted;
  const auto read = client->read("a");
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().status, VMEM_ERROR_TIMEOUT);
  EXPECT_EQ(registry->posted, posted) << "nobody would wait for the reply";
}

}  // namespace
}  // namespace vmem::runtime
