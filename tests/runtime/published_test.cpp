// Regions that one program publishes and others open, over real sockets.
#include <filesystem>

#include "runtime/published_fixture.hpp"

namespace vmem {
namespace {

TEST_F(PublishedApi, AnotherProgramReadsItAtTheSameAddress) {
  constexpr std::uint64_t kPages = 40;  // more than either program's HBM
  Peer publisher(cluster());
  const std::string published = publisher(fmt::format("publish table {} 3 0", kPages));
  ASSERT_THAT(published, StartsWith("ok"));
  ASSERT_OK(start({{"cluster", cluster()}}));
  ASSERT_OK(open("table"));
  EXPECT_EQ(bytes, kPages * kPage);
  EXPECT_EQ(published, fmt::format("ok {} {}", fmt::ptr(base), kPages));
  for (std::uint64_t page = 0; page < kPages; ++page) ASSERT_OK(read_page(page, 3));
  for (std::uint64_t page = kPages; page-- > 0;) ASSERT_OK(read_page(page, 3));
  ASSERT_OK(vmem_close(base, nullptr, 0));
}

TEST_F(PublishedApi, AnOwnerThatClosesHearsWhatNobodyElseHas) {
  Peer publisher(cluster());
  ASSERT_THAT(publisher("publish table 4 3 0"), StartsWith("ok"));
  EXPECT_THAT(publisher("close"), HasSubstr("no other node is known to have 4 of its pages: pages 0 to 3; publish"));
}

TEST_F(PublishedApi, TheOwnerReadsOnAndNobodyWrites) {
  Peer publisher(cluster());
  ASSERT_THAT(publisher("publish table 4 1 0"), StartsWith("ok"));
  ASSERT_OK(start({{"cluster", cluster()}}));
  ASSERT_OK(open("table"));
  const std::uint64_t word = 1;
  EXPECT_NE(vmem_write(base, &word, sizeof(word)), VMEM_OK);
  const vmem_range range{base, kPage, VMEM_READ_WRITE, 0};
  EXPECT_EQ(vmem_acquire(&range, 1, nullptr), VMEM_ERROR_INVALID_VALUE);
  ASSERT_OK(read_page(0, 1));
  EXPECT_THAT(publisher("read 0 1"), StartsWith("ok"));
  EXPECT_EQ(vmem_free(base, nullptr), VMEM_ERROR_INVALID_POINTER);
  EXPECT_THAT(vmem_last_error(), HasSubstr("end it by vmem_close"));
  EXPECT_THAT(publisher("free"), HasSubstr("end it by vmem_close"));
}

TEST_F(PublishedApi, PagesInHbmComeFromThereAndGoThere) {
  Peer publisher(cluster());
  ASSERT_THAT(publisher("publish table 8 1 0"), StartsWith("ok"));
  ASSERT_THAT(publisher("hold"), StartsWith("ok"));
  ASSERT_OK(start({{"cluster", cluster()}}));
  ASSERT_OK(open("table"));
  const vmem_range range{base, bytes, VMEM_READ, 0};
  ASSERT_OK(vmem_acquire(&range, 1, nullptr));
  ASSERT_OK(vmem_release(&range, 1, nullptr));
  vmem_pointer_info info{};
  ASSERT_OK(vmem_query(base, &info));
  EXPECT_EQ(info.bytes_hbm, bytes);
  for (std::uint64_t page = 0; page < 8; ++page) ASSERT_OK(read_page(page, 1));
}

// The owner sends each page about once: later readers are sent to earlier ones first.
TEST_F(PublishedApi, ReadersFetchFromEachOther) {
  Peer publisher(cluster()), reader(cluster());
  ASSERT_THAT(publisher("publish table 6 2 0"), StartsWith("ok"));
  ASSERT_THAT(reader("open table 5000"), StartsWith("ok"));
  for (int page = 0; page < 6; ++page) ASSERT_THAT(reader(fmt::format("read {} 2", page)), StartsWith("ok"));
  ASSERT_OK(start({{"cluster", cluster()}}));
  ASSERT_OK(open("table"));
  for (std::uint64_t page = 0; page < 6; ++page) ASSERT_OK(read_page(page, 2));
}

TEST_F(PublishedApi, ANameIsWaitedForAndIsAnothersOnlyOnce) {
  ASSERT_OK(start({{"cluster", cluster()}}));
  ASSERT_EQ(open("later", 300'000), VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(vmem_last_error(), HasSubstr("'later'"));
  Peer publisher(cluster());
  ASSERT_THAT(publisher("publish later 1 1 0"), StartsWith("ok"));
  ASSERT_OK(open("later"));
  void* own = nullptr;
  ASSERT_OK(vmem_malloc(&own, 2 * kPage, 0, nullptr));
  ASSERT_EQ(vmem_publish(own, "later", nullptr), VMEM_ERROR_IN_USE);
  EXPECT_THAT(vmem_last_error(), HasSubstr("has published it"));
  const std::uint64_t word = 7;
  EXPECT_OK(vmem_write(own, &word, sizeof(word)));  // writable as before
  EXPECT_OK(vmem_publish(own, "mine", nullptr));
  EXPECT_NE(vmem_write(own, &word, sizeof(word)), VMEM_OK);
}

TEST_F(PublishedApi, OpeningOnesOwnOrAgainGivesTheSameAddressUntilTheLastClose) {
  ASSERT_OK(start({{"cluster", cluster()}}));
  void* own = nullptr;
  ASSERT_OK(vmem_malloc(&own, 2 * kPage, 0, nullptr));
  ASSERT_OK(vmem_publish(own, "mine", nullptr));
  ASSERT_OK(open("mine"));
  EXPECT_EQ(base, own);
  ASSERT_OK(vmem_close(own, nullptr, 0));
  const vmem_pointer_info before{};
  vmem_pointer_info info = before;
  EXPECT_OK(vmem_query(own, &info));
  EXPECT_EQ(vmem_close(own, nullptr, 0), VMEM_ERROR_LOST) << "nobody else has it";
  EXPECT_EQ(vmem_close(own, nullptr, 0), VMEM_ERROR_INVALID_POINTER);
}

TEST_F(PublishedApi, WithoutAClusterThereIsNothingToPublishTo) {
  ASSERT_OK(start({}));
  void* own = nullptr;
  ASSERT_OK(vmem_malloc(&own, 2 * kPage, 0, nullptr));
  EXPECT_EQ(vmem_publish(own, "mine", nullptr), VMEM_ERROR_UNSUPPORTED);
  EXPECT_THAT(vmem_last_error(), HasSubstr("option cluster"));
}

TEST_F(PublishedApi, WhatSharesPagesOrIsNoNameIsRefused) {
  ASSERT_OK(start({{"cluster", cluster()}}));
  void* small = nullptr;
  void* large = nullptr;
  ASSERT_OK(vmem_malloc(&small, 4096, 0, nullptr));
  ASSERT_OK(vmem_malloc(&large, 2 * kPage, 0, nullptr));
  EXPECT_EQ(vmem_publish(small, "small", nullptr), VMEM_ERROR_INVALID_VALUE);
  EXPECT_EQ(vmem_publish(static_cast<std::byte*>(large) + 8, "inside", nullptr), VMEM_ERROR_INVALID_VALUE);
  EXPECT_EQ(vmem_publish(large, "no name!", nullptr), VMEM_ERROR_INVALID_VALUE);
  EXPECT_EQ(vmem_publish(large, nullptr, nullptr), VMEM_ERROR_INVALID_VALUE);
  const std::uint64_t word = 7;
  EXPECT_OK(vmem_write(large, &word, sizeof(word)));
}

TEST_F(PublishedApi, CopiesOutliveTheirPublisher) {
  const auto daemon = join({"--copies", "64MiB"});
  {
    Peer publisher(cluster());
    ASSERT_THAT(publisher("publish table 12 5 1"), StartsWith("ok"));
    ASSERT_THAT(publisher("close"), StartsWith("ok"));
    publisher.process().tell("end\n");
    publisher.process().wait();
  }
  ASSERT_OK(start({{"cluster", cluster()}}));
  ASSERT_OK(open("table"));
  EXPECT_EQ(bytes, 12 * kPage);
  for (std::uint64_t page = 0; page < 12; ++page) ASSERT_OK(read_page(page, 5));
  ASSERT_OK(vmem_close(base, nullptr, 0));
}

// Without a page that somebody keeps, nobody would know that its pages are zero.
TEST_F(PublishedApi, MemoryThatWasNeverWrittenOutlivesItsPublisher) {
  const auto daemon = join({"--copies", "64MiB"});
  {
    Peer publisher(cluster());
    ASSERT_THAT(publisher("publish table 12 0 1"), StartsWith("ok"));
    ASSERT_THAT(publisher("close"), StartsWith("ok"));
    publisher.process().tell("end\n");
    publisher.process().wait();
  }
  ASSERT_OK(start({{"cluster", cluster()}}));
  ASSERT_OK(open("table"));
  const std::vector<std::uint64_t> zeros(kPage / 8);
  for (std::uint64_t page = 0; page < 12; ++page) {
    std::vector<std::uint64_t> read(kPage / 8, 1);
    ASSERT_OK(vmem_read(read.data(), base + page * kPage, kPage));
    EXPECT_EQ(read, zeros) << page;
  }
  ASSERT_OK(vmem_close(base, nullptr, 0));
}

TEST_F(PublishedApi, MemoryThatWasNeverWrittenIsMissedLikeOther) {
  Peer publisher(cluster());
  ASSERT_THAT(publisher("publish table 4 0 0"), StartsWith("ok"));
  EXPECT_THAT(publisher("close"), HasSubstr("no other node is known to have 1 of its pages"));
}

TEST_F(PublishedApi, AProgramThatReturnsFromMainLeavesTheClusterInOrder) {
  const auto daemon = join({"--copies", "64MiB"});
  {
    Peer publisher(cluster());
    ASSERT_THAT(publisher("publish table 4 5 1"), StartsWith("ok"));
    publisher.process().end_input();
    publisher.process().wait();
  }
  EXPECT_EQ(nlohmann::json::parse(output("node list --json --cluster " + cluster())).size(), 1u) << "the daemon";
  ASSERT_OK(start({{"cluster", cluster()}}));
  ASSERT_OK(open("table")) << "the daemon is its home";
  for (std::uint64_t page = 0; page < 4; ++page) ASSERT_OK(read_page(page, 5));
}

TEST_F(PublishedApi, ADaemonTellsTheClusterOfAProgramThatWasKilledOnItsHost) {
  const auto daemon = join({"--copies", "64MiB"});
  const auto stays = join();
  {
    Peer publisher(cluster());
    ASSERT_THAT(publisher("publish table 4 5 1"), StartsWith("ok"));
    publisher.process().signal(SIGKILL);
    publisher.process().wait();
  }
  EXPECT_TRUE(within(std::chrono::milliseconds(5000), [&] {
    return nlohmann::json::parse(output("node list --json --cluster " + cluster())).size() == 2;
  })) << "the daemons are left";
  ASSERT_OK(start({{"cluster", cluster()}}));
  ASSERT_OK(open("table")) << "a daemon is its home now";
  for (std::uint64_t page = 0; page < 4; ++page) ASSERT_OK(read_page(page, 5));
}

// The publisher has borrowed all that the daemon lends.
TEST_F(PublishedApi, CopiesComeFromADaemonThatHasNoMoreMemoryToLend) {
  const auto daemon = join({"--copies", "64MiB"});
  Peer publisher(cluster());
  ASSERT_THAT(publisher("publish table 4 5 1"), StartsWith("ok"));
  ASSERT_THAT(publisher("close"), StartsWith("ok"));
  ASSERT_THAT(publisher("allocate 68"), StartsWith("ok")) << "136 MiB, of which 80 MiB have room there";
  ASSERT_OK(start({{"cluster", cluster()}}));
  EXPECT_EQ(stats().remote_budget_bytes, 0u);
  ASSERT_OK(open("table"));
  for (std::uint64_t page = 0; page < 4; ++page) ASSERT_OK(read_page(page, 5));
  publisher.process().tell("end\n");
  publisher.process().wait();
  // Programs ask every 5 s what there is.
  EXPECT_TRUE(within(std::chrono::milliseconds(15'000), [] { return stats().remote_budget_bytes == 64 * kMiB; }));
}

TEST_F(PublishedApi, CopiesComeFromADaemonThatDrainsAsLongAsNobodyElseHasThem) {
  const auto daemon = join({"--copies", "64MiB"});
  {
    Peer publisher(cluster());
    ASSERT_THAT(publisher("publish table 4 5 1"), StartsWith("ok"));
    publisher.process().end_input();
    publisher.process().wait();
  }
  output("node drain 1 --force --cluster " + cluster());
  EXPECT_TRUE(within(std::chrono::milliseconds(5000), [&] {
    return nlohmann::json::parse(output("node list --json --cluster " + cluster()))[0].at("drains") == true;
  }));
  ASSERT_OK(start({{"cluster", cluster()}}));
  ASSERT_OK(open("table"));
  for (std::uint64_t page = 0; page < 4; ++page) ASSERT_OK(read_page(page, 5));
}

TEST_F(PublishedApi, CopiesThatNoOtherDaemonCanTakeKeepADrainWaitingUnlessItIsForced) {
  const auto first = join({"--copies", "64MiB"}), second = join({"--copies", "64MiB"});
  Peer publisher(cluster());
  ASSERT_THAT(publisher("publish table 4 5 2"), StartsWith("ok"));
  EXPECT_THAT(output("node drain 1 2>&1 --cluster " + cluster()),
              ::testing::AllOf(HasSubstr("'table' is to have 2 copies"), HasSubstr("1 other daemon could have one")));
  EXPECT_THAT(output("node drain 1 --force --wait 2>&1 --cluster " + cluster()), HasSubstr("node 1 is drained"));
  publisher.process().end_input();
  publisher.process().wait();
  ASSERT_OK(start({{"cluster", cluster()}}));
  ASSERT_OK(open("table"));
  for (std::uint64_t page = 0; page < 4; ++page) ASSERT_OK(read_page(page, 5));
}

TEST_F(PublishedApi, ARegionIsRemovedWhereNobodyIsLeftToDoSo) {
  auto publisher = std::make_unique<Peer>(cluster());
  ASSERT_THAT((*publisher)("publish table 4 5 0"), StartsWith("ok"));
  ASSERT_THAT((*publisher)("publish other 4 5 0"), StartsWith("ok"));
  publisher.reset();
  forget_node(1);
  EXPECT_EQ(output("region rm table 2>&1 --cluster " + cluster()),
            "'table' is removed; who has it open keeps the pages that are there\n")
      << "without a word about others";
  const auto left = regions();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].at("name"), "other");
}

TEST_F(PublishedApi, AStreamThatCannotBeUsedLeavesItOpen) {
  ASSERT_OK(start({{"cluster", cluster()}}));
  void* own = nullptr;
  ASSERT_OK(vmem_malloc(&own, 2 * kPage, 0, nullptr));
  ASSERT_OK(vmem_publish(own, "table", nullptr));
  EXPECT_EQ(vmem_close(own, reinterpret_cast<vmem_stream>(std::uintptr_t{0x10}), 0), VMEM_ERROR_INVALID_VALUE);
  const auto regions = nlohmann::json::parse(output("region list --json --cluster " + cluster()));
  ASSERT_EQ(regions.size(), 1u);
  EXPECT_EQ(regions[0].at("members"), 1) << "other nodes can still fetch it from here";
  EXPECT_OK(open("table"));
  EXPECT_EQ(base, own);
}

TEST_F(PublishedApi, HandlesInCppCloseWhatTheyOpened) {
  ASSERT_OK(start({{"cluster", cluster()}}));
  {
    buffer<std::uint64_t> made(2 * kPage / 8);
    const std::vector<std::uint64_t> words = page_words(0, 9);
    made.store(words);
    const std::uint64_t* const at = made.data();
    EXPECT_THROW(published<std::uint64_t>::from(std::move(made), "no name!"), error);
    ASSERT_EQ(made.data(), at) << "an error leaves the buffer as it was";
    auto own = published<std::uint64_t>::from(std::move(made), "words");
    EXPECT_TRUE(made.empty());
    published<std::uint64_t> opened("words");
    EXPECT_EQ(opened.data(), own.data());
    EXPECT_EQ(opened.size(), 2 * kPage / 8);
    std::vector<std::uint64_t> read(words.size());
    opened.load(read);
    EXPECT_EQ(read, words);
    EXPECT_THROW(opened.load(read, opened.size()), error);
    own = {};
    opened.load(read);
    EXPECT_THROW(opened.reset(), error) << "nobody else has its pages";
    EXPECT_TRUE(opened.empty());
  }
  EXPECT_EQ(stats().allocated_bytes, 0u);
}

// 3 GiB of addresses are three slices. Programs that are killed leave theirs behind; one is
// reclaimed, and another one is not as long as a member has a region open there.
TEST_F(PublishedApi, SlicesOfTheDeadAreReclaimedUnlessARegionLivesThere) {
  const std::vector<std::pair<std::string, std::string>> small{{"space", "3GiB"}};
  auto publisher = std::make_unique<Peer>(cluster(), small);  // node 1
  auto other = std::make_unique<Peer>(cluster(), small);      // node 2
  auto reader = std::make_unique<Peer>(cluster(), small);     // node 3
  ASSERT_THAT((*publisher)("publish table 2 1 0"), StartsWith("ok"));
  ASSERT_THAT((*reader)("open table 5000"), StartsWith("ok"));
  publisher.reset();
  other.reset();
  const std::vector<std::pair<std::string, std::string>> options{{"cluster", cluster()}, {"space", "3GiB"}};
  ASSERT_EQ(start(options), VMEM_ERROR_ADDRESS_SPACE) << "both may live";
  forget_node(1);
  ASSERT_EQ(start(options), VMEM_ERROR_ADDRESS_SPACE) << "its region is open";
  forget_node(2);
  ASSERT_OK(start(options));
  void* memory = nullptr;
  ASSERT_OK(vmem_malloc(&memory, kPage, 0, nullptr));
  vmem_shutdown();
  Peer again(cluster(), small);
  EXPECT_THAT((*reader)("close"), StartsWith("ok"));
}

TEST_F(PublishedApi, ARegionEndsWithTheSlicesOfTheLastNodeThatHeldItsPages) {
  const std::vector<std::pair<std::string, std::string>> small{{"space", "3GiB"}};
  auto publisher = std::make_unique<Peer>(cluster(), small);  // node 1
  Peer other(cluster(), small);                               // node 2
  Peer third(cluster(), small);                               // node 3, which becomes its home
  ASSERT_THAT((*publisher)("publish table 2 1 0"), StartsWith("ok"));
  publisher.reset();
  forget_node(1);
  ASSERT_TRUE(within(std::chrono::milliseconds(5000), [&] {
    const auto listed = regions();
    return listed.size() == 1 && listed[0].at("home") != 1;
  }));
  ASSERT_OK(start({{"cluster", cluster()}, {"space", "3GiB"}}));
  EXPECT_EQ(regions().size(), 0u) << "its addresses are this program's";
  EXPECT_EQ(open("table", 300'000), VMEM_ERROR_TIMEOUT);
  EXPECT_TRUE(within(std::chrono::milliseconds(8000), [&] {
    return third("open table 300").contains("nobody has published that name");
  })) << "it reads the registry once a second";
  hold_pages(2);
  ASSERT_OK(vmem_publish(base, "table", nullptr));
  EXPECT_THAT(third("open table 5000"), StartsWith("ok"));
}

TEST_F(PublishedApi, TheToolListsRegionsAndRemovesThem) {
  ASSERT_OK(start({{"cluster", cluster()}}));
  void* own = nullptr;
  ASSERT_OK(vmem_malloc(&own, 2 * kPage, 0, nullptr));
  ASSERT_OK(vmem_publish(own, "table", nullptr));
  const auto regions = nlohmann::json::parse(output("region list --json --cluster " + cluster()));
  ASSERT_EQ(regions.size(), 1u);
  EXPECT_EQ(regions[0].at("name"), "table");
  EXPECT_EQ(regions[0].at("bytes"), 2 * kPage);
  EXPECT_EQ(regions[0].at("members"), 1);
  EXPECT_FALSE(regions[0].contains("key"));
  EXPECT_THAT(output("region list --cluster " + cluster()), HasSubstr("version 1: 4 MiB in "));
  EXPECT_THAT(output("region rm tables 2>&1 --cluster " + cluster()), HasSubstr("no region is published as 'tables'"));
  EXPECT_THAT(output("region rm table 2>&1 --cluster " + cluster()), StartsWith("'table' is removed"));
  EXPECT_EQ(open("table", 300'000), VMEM_ERROR_TIMEOUT);
  EXPECT_OK(read_back(own));
  EXPECT_OK(vmem_close(own, nullptr, 0));
  EXPECT_TRUE(within(std::chrono::milliseconds(5000),
                     [&] { return output("region list --cluster " + cluster()).starts_with("0 published regions"); }));
}

TEST_F(PublishedApi, ReadersOfOtherTenantsOpenItAndNobodyElse) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("vmem-readers-{}", ::getpid());
  std::filesystem::create_directory(folder);
  const auto secret = [&](const std::string& name) { return (folder / name).string(); };
  for (const char* const tenant : {"a", "b", "c"})
    output(fmt::format("secret new {} --identity {}", secret(tenant), tenant));
  ASSERT_EQ(
      std::system(
          fmt::format("umask 077; cat {} {} {} > {}", secret("a"), secret("b"), secret("c"), secret("all")).c_str()),
      0);
  Peer publisher(cluster(), {{"secret", secret("all")}});
  ASSERT_THAT(publisher("publish table 4 1 0 b"), StartsWith("ok"));
  EXPECT_THAT(output("region list --cluster " + cluster()), HasSubstr(", also for b"));
  EXPECT_EQ(regions()[0].at("readers"), nlohmann::json::array({"b"}));
  Peer stranger(cluster(), {{"secret", secret("c")}});
  EXPECT_THAT(stranger("open table 8000"),
              HasSubstr("may be opened by nodes of the tenant 'a' and of b, and this one proves to be of 'c'"));
  ASSERT_OK(start({{"cluster", cluster()}, {"secret", secret("b")}}));
  ASSERT_OK(open("table"));
  for (std::uint64_t page = 0; page < 4; ++page) ASSERT_OK(read_page(page, 1));
  vmem_shutdown();
  std::filesystem::remove_all(folder);
}

TEST_F(PublishedApi, PublishingAgainSendsChangedPagesOnly) {
  constexpr std::uint64_t kPages = 64, kChanged[] = {0, 17, 63};
  const auto daemon = join({"--copies", "300MiB"});
  ASSERT_OK(start({{"cluster", cluster()}, {"host", "512MiB"}}));
  Peer reader(cluster(), {{"host", "400MiB"}, {"published_cache", "100%"}});
  const vmem_publish_options options{
      .copies = 1, .reserved = 0, .expires_s = 0, .wait_us = 30'000'000, .readers = nullptr};
  hold_pages(kPages);
  ASSERT_OK(vmem_publish(base, "table", &options));
  ASSERT_EQ(shared().sent_pages, kPages);
  ASSERT_THAT(reader("open table 5000"), StartsWith("ok"));
  for (std::uint64_t page = 0; page < kPages; ++page)
    ASSERT_THAT(reader(fmt::format("read {} 1", page)), StartsWith("ok"));
  const std::uint64_t sent = shared().sent_pages;
  hold_pages(kPages);
  for (const std::uint64_t page : kChanged) write_page(page, 2);
  ASSERT_OK(vmem_publish(base, "table", &options));
  EXPECT_EQ(shared().sent_pages - sent, std::size(kChanged)) << "to the daemon";
  EXPECT_EQ(shared().same_pages, kPages - std::size(kChanged));
  EXPECT_EQ(shared().published_regions, 2u);
  ASSERT_THAT(reader("open table 5000"), StartsWith("ok"));
  for (std::uint64_t page = 0; page < kPages; ++page) {
    const bool changed = std::ranges::find(kChanged, page) != std::end(kChanged);
    ASSERT_THAT(reader(fmt::format("read {} {}", page, changed ? 2 : 1)), StartsWith("ok"));
  }
  EXPECT_THAT(reader("stats"), HasSubstr(fmt::format(" reused {}", kPages - std::size(kChanged))));
}

TEST_F(PublishedApi, PublishingAgainMakesANewVersion) {
  ASSERT_OK(start({{"cluster", cluster()}}));
  Peer publisher(cluster());
  ASSERT_THAT(publisher("publish table 2 1 0"), StartsWith("ok"));
  ASSERT_OK(open("table"));
  ASSERT_OK(read_page(1, 1));
  ASSERT_OK(vmem_close(base, nullptr, 0));
  ASSERT_THAT(publisher("publish table 3 2 0"), StartsWith("ok"));
  EXPECT_TRUE(within(std::chrono::milliseconds(5000), [&] {
    if (open("table") != VMEM_OK) return false;
    if (bytes == 3 * kPage) return true;
    EXPECT_OK(vmem_close(base, nullptr, 0));
    return false;
  }));
  ASSERT_OK(read_page(2, 2));
}

// The record of a program that does not know what addresses it was given.
TEST_F(PublishedApi, WhatLiesWhereAnotherRegionIsOpenIsRefusedWithItsAddresses) {
  Peer publisher(cluster());
  ASSERT_THAT(publisher("publish table 2 1 0"), StartsWith("ok"));
  ASSERT_OK(start({{"cluster", cluster()}}));
  ASSERT_OK(open("table"));
  copy_record("table", "other");
  EXPECT_EQ(open("other"), VMEM_ERROR_ADDRESS_SPACE);
  EXPECT_THAT(vmem_last_error(), HasSubstr("'other'"));
  EXPECT_THAT(vmem_last_error(), HasSubstr(fmt::format("{} to {}", fmt::ptr(base), fmt::ptr(base + 2 * kPage - 1))));
  EXPECT_EQ(shared().opened_regions, 1u);
  EXPECT_OK(read_page(0, 1));
}

TEST_F(PublishedApi, WhatHasLargerPagesThanHostMemoryIsRefusedAndLeavesNothing) {
  ::setenv("VMEM_EMU", "devices=1,hbm=512MiB,host=1GiB", 1);
  Peer large(cluster(), {{"page", "32MiB"}, {"hbm", "256MiB"}, {"host", "128MiB"}}), small(cluster());
  ASSERT_THAT(large("publish large 16 1 0"), StartsWith("ok"));
  ASSERT_THAT(small("publish small 2 1 0"), StartsWith("ok"));
  ASSERT_OK(start({{"cluster", cluster()}, {"host", "16MiB"}}));
  EXPECT_EQ(open("large"), VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_THAT(vmem_last_error(), HasSubstr("raise --host"));
  EXPECT_EQ(shared().opened_regions, 0u);
  ASSERT_OK(open("small"));
  EXPECT_OK(read_page(1, 1));
}

}  // namespace
}  // namespace vmem
