// What the client sends, with answers that the test makes.
#include "cluster/registry/registry_conformance.hpp"
#include "cluster/registry/served/record_codec.hpp"
#include "cluster/registry/served/served_world.hpp"

namespace vmem::cluster {
namespace {

using namespace served;

class ScriptedChannel final : public RequestChannel {
 public:
  void send(std::string message) override { questions.push_back(*decode_question(message)); }
  void receive(std::vector<std::string>& answers) override { answers.swap(waiting); }
  void answer(std::uint64_t number, decltype(Answer::what) what) {
    waiting.push_back(
        encode(Answer{.client = 1, .number = number, .incarnation = Incarnation{5}, .what = std::move(what)}));
  }
  std::vector<Question> questions;
  std::vector<std::string> waiting;
};

class ServedClientTest : public ::testing::Test {
 protected:
  void open() {
    channel.answer(0, Opened{1});
    poll();
  }
  void poll() { client->poll(replies); }
  Page page(std::int64_t revision, std::uint32_t offset) const {
    return {.revision = Revision{revision}, .total = 2 * half, .offset = offset, .bytes = bytes.substr(offset, half)};
  }

  ManualClock clock;
  ScriptedChannel channel;
  std::unique_ptr<ServedRegistry> client = served_client(clock, channel, 1);
  std::vector<Reply> replies;
  // Two pages of a reading.
  const std::string bytes = encode_records({{.key = "a", .value = "12345", .modified = Revision{2}, .lease = {}}});
  const std::uint32_t half = static_cast<std::uint32_t>(bytes.size() / 2);
};

TEST_F(ServedClientTest, AtMostAWindowOfWritesIsUnderWay) {
  for (std::uint64_t i = 0; i < 2 * kWriteWindow; ++i) (void)client->post(GrantLease{5});
  EXPECT_EQ(channel.questions.size(), 1u);
  open();
  EXPECT_EQ(channel.questions.size(), 1 + kWriteWindow);
  // The lowest number holds back all others.
  channel.answer(2, Outcome{.revision = Revision{7}, .what = Granted{LeaseId{3}, 5}});
  poll();
  EXPECT_EQ(channel.questions.size(), 1 + kWriteWindow);
  channel.answer(1, Outcome{.revision = Revision{7}, .what = Granted{LeaseId{2}, 5}});
  poll();
  EXPECT_EQ(channel.questions.size(), 3 + kWriteWindow);
}

TEST_F(ServedClientTest, LargeWritesGoOneAfterTheOther) {
  for (int i = 0; i < 2; ++i)
    (void)client->post(Commit{.conditions = {}, .edits = {put("a", std::string(2 * kPieceBytes, 'x'))}});
  (void)client->post(GrantLease{5});
  open();
  ASSERT_EQ(channel.questions.size(), 3u);
  EXPECT_EQ(channel.questions[1].number, 1u);
  EXPECT_EQ(channel.questions[2].number, 3u);
  channel.answer(1, Outcome{.revision = Revision{7}, .what = Committed{true}});
  poll();
  ASSERT_EQ(channel.questions.size(), 4u);
  EXPECT_EQ(channel.questions[3].number, 2u);
}

TEST_F(ServedClientTest, PagesOfTwoRevisionsAreNotMixed) {
  (void)client->post(ReadPrefix{""});
  channel.answer(1, page(3, 0));
  channel.answer(1, page(4, half));
  poll();
  EXPECT_TRUE(replies.empty());
  channel.answer(1, page(2, 0));  // a late copy of an older one changes nothing
  channel.answer(1, page(3, 0));
  channel.answer(1, page(3, half));
  poll();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].revision, Revision{3});
}

TEST(Sessions, AnOutcomeOutsideOfTheWindowIsStale) {
  Session session;
  EXPECT_FALSE(session.stale(1));
  session.carried_out(kWriteWindow, {.revision = {}, .what = Ended{}});
  EXPECT_FALSE(session.stale(1));
  session.carried_out(kWriteWindow + 1, {.revision = {}, .what = Ended{}});
  EXPECT_TRUE(session.stale(1));
  EXPECT_FALSE(session.stale(2));
  EXPECT_NE(session.find(kWriteWindow), nullptr);
}

}  // namespace
}  // namespace vmem::cluster
