// What publishing, opening and closing wait for, and what is left when that does not come.
#include <filesystem>
#include <latch>
#include <thread>

#include "runtime/emulated_gpu.hpp"
#include "runtime/published_fixture.hpp"

namespace vmem {
namespace {

// The registry takes the record when it is back, which is too late.
TEST_F(PublishedApi, ARegistryThatGoesAwayInMidPublicationLeavesMemoryWritable) {
  test::EmulatedGpu gpu("devices=1,hbm=256MiB,host=1GiB");
  ASSERT_OK(start({{"cluster", cluster()}}));
  std::byte* const own = written(2);
  gpu.make_current(0);
  const CUstream stream = gpu.create_stream(0);
  const vmem_range first{own, kPage, VMEM_READ, 0};
  std::latch goes_on(1);
  ASSERT_OK(vmem_acquire(&first, 1, reinterpret_cast<vmem_stream>(stream)));
  ASSERT_EQ(gpu.launch(stream, 0, [&] { goes_on.wait(); }), CUDA_SUCCESS);
  ASSERT_OK(vmem_release(&first, 1, reinterpret_cast<vmem_stream>(stream)));
  vmem_status published = VMEM_OK;
  std::string why;
  std::thread publisher([&] {
    const vmem_publish_options options{
        .copies = 0, .reserved = 0, .expires_s = 0, .wait_us = 3'000'000, .readers = nullptr};
    published = vmem_publish(own, "table", &options);
    why = vmem_last_error();
  });
  const bool begun = within(std::chrono::milliseconds(2500), [&] { return !is_writable(own + kPage); });
  stop_registry();
  goes_on.count_down();
  publisher.join();
  EXPECT_TRUE(begun) << "the registry was there when it began";
  EXPECT_EQ(published, VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(why, HasSubstr("writable"));
  EXPECT_TRUE(is_writable(own));
  EXPECT_TRUE(is_writable(own + kPage));
  EXPECT_EQ(vmem_close(own, nullptr, 0), VMEM_ERROR_INVALID_POINTER);
  resume_registry();
  EXPECT_OK(vmem_publish(own, "table", nullptr));
  EXPECT_TRUE(within(std::chrono::milliseconds(8000), [&] { return regions().size() == 1; }));
  EXPECT_OK(open("table"));
  EXPECT_EQ(base, own);
  vmem_shutdown();
}

TEST_F(PublishedApi, APublicationHasOneTimeForTheRegistryAndForNodes) {
  ASSERT_OK(start({{"cluster", cluster()}}));
  std::byte* const own = written(2);
  stop_registry();
  std::thread registry([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));  // most of the time
    resume_registry();
  });
  const vmem_publish_options options{
      .copies = 1, .reserved = 0, .expires_s = 0, .wait_us = 4'000'000, .readers = nullptr};
  const auto took = time_of([&] { EXPECT_EQ(vmem_publish(own, "table", &options), VMEM_ERROR_TIMEOUT); });
  registry.join();
  EXPECT_LT(took, std::chrono::milliseconds(5500));
}

TEST_F(PublishedApi, APublicationThatWaitsForCopiesHoldsNobodyUp) {
  ASSERT_OK(start({{"cluster", cluster()}}));
  std::byte* const slow = written(2);
  std::byte* const fast = written(2);
  std::thread publisher([&] {
    const vmem_publish_options options{
        .copies = 1, .reserved = 0, .expires_s = 0, .wait_us = 9'000'000, .readers = nullptr};
    EXPECT_EQ(vmem_publish(slow, "slow", &options), VMEM_ERROR_TIMEOUT) << "there is no daemon";
  });
  EXPECT_TRUE(within(std::chrono::milliseconds(8000), [&] { return regions().size() == 1; }));
  const auto took = time_of([&] {
    EXPECT_OK(vmem_publish(fast, "fast", nullptr));
    EXPECT_OK(open("fast"));
    EXPECT_EQ(vmem_close(slow, nullptr, 0), VMEM_ERROR_IN_USE);
    EXPECT_THAT(vmem_last_error(), HasSubstr("another thread"));
  });
  EXPECT_LT(took, std::chrono::milliseconds(5000));
  publisher.join();
}

TEST_F(PublishedApi, AClosingKeepsWhatADaemonHasRoomForAndWaitsForNoMore) {
  const auto daemon = join({"--copies", "8MiB"});
  ASSERT_OK(start({{"cluster", cluster()}}));
  std::byte* const own = written(8);
  ASSERT_OK(vmem_publish(own, "table", nullptr));
  const auto took = time_of([&] { EXPECT_EQ(vmem_close(own, nullptr, 20'000'000), VMEM_ERROR_LOST); });
  EXPECT_THAT(vmem_last_error(), HasSubstr("no other node is known to have 4 of its pages"));
  EXPECT_LT(took, std::chrono::milliseconds(8000));
}

TEST_F(PublishedApi, WithoutARegistryMemoryStaysWritable) {
  ASSERT_OK(start({{"cluster", cluster()}}));
  void* own = nullptr;
  ASSERT_OK(vmem_malloc(&own, 2 * kPage, 0, nullptr));
  stop_registry();
  const vmem_publish_options options{
      .copies = 0, .reserved = 0, .expires_s = 0, .wait_us = 500'000, .readers = nullptr};
  EXPECT_EQ(vmem_publish(own, "table", &options), VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(vmem_last_error(), HasSubstr("within 500ms"));
  const std::uint64_t word = 7;
  EXPECT_OK(vmem_write(own, &word, sizeof(word)));
  EXPECT_EQ(vmem_close(own, nullptr, 0), VMEM_ERROR_INVALID_POINTER);
  resume_registry();
  EXPECT_OK(vmem_publish(own, "table", nullptr));
}

TEST_F(PublishedApi, AClosingMayWaitForEver) {
  const auto daemon = join({"--copies", "64MiB"});
  ASSERT_OK(start({{"cluster", cluster()}}));
  void* own = nullptr;
  ASSERT_OK(vmem_malloc(&own, 2 * kPage, 0, nullptr));
  const std::vector<std::byte> some(2 * kPage, std::byte{7});
  ASSERT_OK(vmem_write(own, some.data(), some.size()));
  ASSERT_OK(vmem_publish(own, "table", nullptr));
  EXPECT_OK(vmem_close(own, nullptr, UINT64_MAX)) << "the daemon takes over what nobody else has";
}

TEST_F(PublishedApi, TooFewCopiesAreNamedAndTheRegionIsPublishedAllTheSame) {
  const auto daemon = join({"--copies", "8MiB"});
  ASSERT_OK(start({{"cluster", cluster()}}));
  void* own = nullptr;
  ASSERT_OK(vmem_malloc(&own, 8 * kPage, 0, nullptr));
  std::vector<std::byte> some(8 * kPage, std::byte{7});
  ASSERT_OK(vmem_write(own, some.data(), some.size()));
  const vmem_publish_options options{
      .copies = 1, .reserved = 0, .expires_s = 0, .wait_us = 2'000'000, .readers = nullptr};
  ASSERT_EQ(vmem_publish(own, "table", &options), VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(vmem_last_error(), HasSubstr("'table'"));
  EXPECT_OK(open("table"));
  EXPECT_EQ(base, own);
}

TEST_F(PublishedApi, WhereNoDaemonTakesCopiesTheErrorComesAtOnceAndSaysWhatToDo) {
  const auto daemon = join({"--lend", "16MiB"});
  ASSERT_OK(start({{"cluster", cluster()}}));
  std::byte* const own = written(2);
  const vmem_publish_options options{
      .copies = 1, .reserved = 0, .expires_s = 0, .wait_us = 120'000'000, .readers = nullptr};
  const auto took = time_of([&] { ASSERT_EQ(vmem_publish(own, "table", &options), VMEM_ERROR_TIMEOUT); });
  EXPECT_THAT(vmem_last_error(), HasSubstr("`vmem daemon --copies SIZE`"));
  EXPECT_LT(took, std::chrono::seconds(30));
  EXPECT_OK(open("table")) << "it is published all the same";
  const auto keeper = join({"--copies", "16MiB"});
  EXPECT_TRUE(within(std::chrono::seconds(20), [&] { return regions().at(0).at("members") == 2; }));
}

TEST_F(PublishedApi, AnOpeningDoesNotBlameTheNameWhereTheRegistryIsAway) {
  ASSERT_OK(start({{"cluster", cluster()}}));
  stop_registry();
  EXPECT_EQ(open("none", 500'000), VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(vmem_last_error(), HasSubstr("the registry did not answer"));
  resume_registry();
}

TEST_F(PublishedApi, ANameThatCannotExistIsRefusedAtOnce) {
  ASSERT_OK(start({{"cluster", cluster()}}));
  const auto took = time_of([&] {
    for (const char* const name : {"", "no such!"}) {
      EXPECT_EQ(open(name, 20'000'000), VMEM_ERROR_INVALID_VALUE) << name;
      EXPECT_THAT(vmem_last_error(), HasSubstr("begins with a letter or a digit")) << name;
    }
  });
  EXPECT_LT(took, std::chrono::seconds(10));
  EXPECT_THAT(output("region rm 'no such!' 2>&1 --cluster " + cluster()), HasSubstr("begins with a letter or a digit"));
}

TEST_F(PublishedApi, WhoseSecretItsHomeRefusesIsToldSoAtOnce) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("vmem-refused-{}", ::getpid());
  std::filesystem::create_directory(folder);
  const auto secret = [&](const std::string& name) { return (folder / name).string(); };
  for (const char* const tenant : {"a", "b"})
    output(fmt::format("secret new {} --identity {}", secret(tenant), tenant));
  Peer publisher(cluster(), {{"secret", secret("a")}});
  ASSERT_THAT(publisher("publish table 2 1 0"), StartsWith("ok"));
  ASSERT_OK(start({{"cluster", cluster()}, {"secret", secret("b")}}));
  for (int turn = 0; turn < 2; ++turn) {
    const auto took = time_of([&] { EXPECT_EQ(open("table", 30'000'000), VMEM_ERROR_INVALID_OPTION) << turn; });
    EXPECT_THAT(vmem_last_error(), HasSubstr("its home, node 1 (term 1), refuses the connection: ")) << turn;
    EXPECT_THAT(vmem_last_error(), HasSubstr("give both the same secret file")) << turn;
    EXPECT_LT(took, std::chrono::seconds(15)) << turn;
  }
  vmem_shutdown();
  EXPECT_THAT(output(fmt::format("region rm table --secret {} 2>&1 --cluster {}", secret("b"), cluster())),
              HasSubstr("refuses the connection"));
  ASSERT_OK(start({{"cluster", cluster()}}));
  EXPECT_EQ(open("table", 2'000'000), VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(vmem_last_error(), HasSubstr("is reached with the same ones only")) << "a program without any";
  vmem_shutdown();
  std::filesystem::remove_all(folder);
}

TEST_F(PublishedApi, AClosingSaysWhatTheEndOfTheMembershipMayHaveLost) {
  ASSERT_OK(start({{"cluster", cluster()}}));
  std::byte* const own = written(2);
  ASSERT_OK(vmem_publish(own, "table", nullptr));
  forget_node(1);
  ASSERT_TRUE(within(std::chrono::seconds(20), [&] {
    const auto nodes = nlohmann::json::parse(output("node list --json --cluster " + cluster()));
    return nodes.size() == 1 && nodes[0].at("id") != 1;
  })) << "it enrolls again";
  EXPECT_EQ(vmem_close(own, nullptr, 0), VMEM_ERROR_LOST);
  EXPECT_THAT(vmem_last_error(), HasSubstr("'table'"));
  EXPECT_THAT(vmem_last_error(), HasSubstr("pages 0 to 1"));
  EXPECT_EQ(vmem_close(own, nullptr, 0), VMEM_ERROR_INVALID_POINTER) << "it is closed all the same";
}

}  // namespace
}  // namespace vmem
