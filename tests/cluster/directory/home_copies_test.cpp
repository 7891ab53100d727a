// How long a publication waits for its copies, and what it says where they are not made.
#include "cluster/directory/home_fixture.hpp"

namespace vmem::cluster::directory {
namespace {

using ::testing::HasSubstr;

constexpr NodeId kOne{1};

class CopiesWanted : public HomeDirectoryTest {
 protected:
  static constexpr std::uint64_t kPageBytes = 2 << 20, kWaitUs = 60'000'000;
  // Node 1 publishes, with one copy. The others are daemons with this much room for copies.
  void publish(const std::vector<std::uint64_t>& room) {
    RegionRecord record = region_of(1);
    record.copies = 1;
    record.page_bytes = kPageBytes;
    view.nodes = {{.id = kOne}};
    for (const std::uint64_t bytes : room)
      view.nodes.push_back({.id = NodeId{view.nodes.size() + 1},
                            .daemon = bytes != 0,
                            .without_copies = bytes == 0,
                            .free_bytes = bytes});
    make(record).begin({{.first = 0, .count = 8}});
    home->await_copies(Ticket{5}, clock.now_us() + kWaitUs);
  }
  // Why the publication has ended by now; "": it goes on.
  std::string ended() {
    settle();
    for (const DirectoryEvent& event : out.events) {
      const auto* const end = std::get_if<PublishEnded>(&event);
      if (end == nullptr) continue;
      EXPECT_TRUE(end->published);
      EXPECT_TRUE(!end->serial && end->serial.error().status == VMEM_ERROR_TIMEOUT);
      return end->serial ? "well" : end->serial.error().message;
    }
    return "";
  }
};

TEST_F(CopiesWanted, AreNotWaitedForWhereNoDaemonTakesAPage) {
  view.as_of = Revision{9};  // before the publication: a daemon may have joined since
  publish({0, kPageBytes - 1});
  EXPECT_EQ(ended(), "");
  view.as_of = Revision{10};
  const std::string why = ended();
  EXPECT_THAT(why,
              HasSubstr("8 of 8 pages have fewer copies on daemons than the 1 that was asked for (the fewest: 0)"));
  EXPECT_THAT(why, HasSubstr("no daemon of the cluster takes copies of pages of 2 MiB"));
  EXPECT_THAT(why, HasSubstr("`vmem daemon --copies SIZE`"));
  EXPECT_EQ(ended(), "") << "it has ended once";
}

TEST_F(CopiesWanted, OfADaemonAreOnOthers) {
  publish({0});
  view.nodes[0].daemon = true;
  view.nodes[0].free_bytes = kPageBytes;
  EXPECT_THAT(ended(), HasSubstr("no daemon of the cluster takes copies"));
}

TEST_F(CopiesWanted, AreWaitedForWhereADaemonTakesThem) {
  publish({0, kPageBytes});
  EXPECT_EQ(ended(), "");
  clock.advance(kWaitUs);
  EXPECT_THAT(ended(), HasSubstr("the time was too short"));
}

TEST_F(CopiesWanted, AreWaitedForWhereNoDaemonIsThereYet) {
  publish({});
  EXPECT_EQ(ended(), "");
  clock.advance(kWaitUs);
  const std::string why = ended();
  EXPECT_THAT(why, HasSubstr("the cluster has no other daemon"));
  EXPECT_THAT(why, HasSubstr("`vmem daemon --copies SIZE`"));
}

TEST_F(CopiesWanted, AreNotWaitedForInSilenceWhereADaemonMayNotReadTheRegion) {
  publish({kPageBytes});
  RegionRecord with_daemon = home->desk().record();
  with_daemon.participants[1] = {.node = NodeId{2}, .session = Session{5}, .daemon = true};
  make(with_daemon).begin({{.first = 0, .count = 8}});
  home->await_copies(Ticket{5}, clock.now_us() + kWaitUs);
  settle();
  const std::optional<Keep> keep = said<Keep>();
  ASSERT_TRUE(keep);
  tell(NodeId{2}, Kept{.pages = keep->pages, .round = keep->round, .answer = KeepAnswer::no}, Term{2}, "others");
  clock.advance(kWaitUs);
  const std::string why = ended();
  EXPECT_THAT(why, HasSubstr("node 2 is of the tenant 'others', which may not read the region"));
  EXPECT_THAT(why, HasSubstr("readers"));
}

}  // namespace
}  // namespace vmem::cluster::directory
