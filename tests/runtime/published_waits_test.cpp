// What publishing and closing wait for, and what is left when that does not come.
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

}  // namespace
}  // namespace vmem
