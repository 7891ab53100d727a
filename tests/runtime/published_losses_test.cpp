// Pages of published regions that their publisher has lost, over real sockets.
#include <filesystem>

#include "runtime/published_fixture.hpp"
#include "runtime/spoiled_disk.hpp"

namespace vmem {
namespace {

class PublishedLosses : public PublishedApi {
 protected:
  static constexpr std::uint64_t kPages = 40;
  // This program publishes more pages than its HBM and host memory hold.
  void publish_from_disk() {
    disk_ = std::filesystem::temp_directory_path() / "vmem-published-XXXXXX";
    ASSERT_NE(::mkdtemp(disk_.data()), nullptr);
    ASSERT_OK(start({{"cluster", cluster()}, {"host", "32MiB"}, {"nvme", disk_ + ":256MiB"}}));
    hold_pages(kPages);
    ASSERT_OK(vmem_publish(base, "table", nullptr));
    ASSERT_OK(vmem_quiesce());
    ASSERT_GT(places().bytes_below_host, 0u);
  }
  vmem_pointer_info places() const {
    vmem_pointer_info info{};
    EXPECT_OK(vmem_query(base, &info));
    return info;
  }
  void spoil() { spoil_disk(disk_); }
  std::unique_ptr<Peer> reader() {
    auto peer = std::make_unique<Peer>(cluster(), std::vector<std::pair<std::string, std::string>>{{"host", "256MiB"}});
    EXPECT_THAT((*peer)("open table 5000"), StartsWith("ok"));
    return peer;
  }
  static void read_all(Peer& peer) {
    for (std::uint64_t page = 0; page < kPages; ++page)
      EXPECT_THAT(peer(fmt::format("read {} 1", page)), StartsWith("ok")) << page;
  }
  void TearDown() override {
    PublishedApi::TearDown();
    if (!disk_.empty()) std::filesystem::remove_all(disk_);
  }

 private:
  std::string disk_;
};

TEST_F(PublishedLosses, AReaderThatHasThePagesServesOthersAndTheirPublisher) {
  publish_from_disk();
  const auto first = reader();
  read_all(*first);
  spoil();
  const auto second = reader();
  read_all(*second);
  for (std::uint64_t page = 0; page < kPages; ++page) EXPECT_OK(read_page(page, 1)) << page;
  EXPECT_EQ(places().bytes_lost, 0u);
}

TEST_F(PublishedLosses, WhatNobodyElseHasIsLostForAll) {
  publish_from_disk();
  const std::uint64_t below = places().bytes_below_host / kPage;
  spoil();
  const auto peer = reader();
  std::uint64_t lost = 0;
  for (std::uint64_t page = 0; page < kPages; ++page)
    lost += peer->operator()(fmt::format("read {} 1", page)).starts_with(fmt::format("error {}", int(VMEM_ERROR_LOST)));
  EXPECT_GE(lost, below / 2) << "some pages are in more than one tier";
}

}  // namespace
}  // namespace vmem
