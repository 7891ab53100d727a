// A program on an emulated machine that lends pages of a published region to other nodes: 32 MiB of
// HBM, pages of 2 MiB.
//
// Thread: the test's; answers come from others.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <set>
#include <thread>
#include <vector>

#include "runtime/cluster/mover_pages.hpp"
#include "runtime/emulated_gpu.hpp"
#include "runtime/runtime.hpp"
#include "runtime/spoiled_disk.hpp"
#include "sharing/sharing_fixture.hpp"

namespace vmem::test {

using rdma::wire::Answer;
using runtime::MoverPages;
using runtime::Runtime;
using sharing::fill;
using sharing::kPage;
using sharing::kSerial;
using sharing::LentPage;
using sharing::page_of;

inline constexpr std::size_t kMiB = std::size_t{1} << 20;
inline constexpr std::uint32_t kHbmPages = 16;

using Reply = std::expected<LentPage, Answer>;

struct LentPages : ::testing::Test {
  EmulatedGpu gpu{"devices=1,hbm=256MiB,host=512MiB"};
  std::shared_ptr<const gpu::Driver> driver = gpu.driver();
  std::string folder = ::testing::TempDir() + "vmem-pages-XXXXXX";
  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<MoverPages> pages;
  std::shared_ptr<const sharing::RegionKey> key =
      std::make_shared<const sharing::RegionKey>(*sharing::RegionKey::create());
  CUstream stream = nullptr;
  std::byte* memory = nullptr;
  std::byte* filler = nullptr;

  void SetUp() override { ASSERT_NE(::mkdtemp(folder.data()), nullptr); }
  void TearDown() override {
    pages.reset();
    if (runtime) {
      EXPECT_TRUE(runtime->shut_down());
    }
    runtime.reset();
    std::filesystem::remove_all(folder);
  }
  void start(MoverPages::Config config = {}, std::size_t host_mib = 128, std::size_t nvme_mib = 0) {
    Options options;
    options.space_bytes = 1024 * kMiB;
    options.devices = {0};
    options.hbm_bytes = kHbmPages * kPage;
    options.host_bytes = host_mib * kMiB;
    options.page_bytes = kPage;
    options.prefetch_pages = 0;
    if (nvme_mib != 0) options.nvme = {{folder, nvme_mib * kMiB}};
    auto made = Runtime::create(options, driver);
    ASSERT_TRUE(made) << made.error().message;
    runtime = std::move(*made);
    stream = gpu.create_stream(0);
    pages = std::make_unique<MoverPages>(MoverPages::Parts{runtime->devices(), runtime->mover()}, config);
  }
  std::byte* allocate(std::uint64_t bytes) {
    const auto made = runtime->allocations().allocate(bytes, 0, stream);
    EXPECT_TRUE(made) << made.error().message;
    return made ? static_cast<std::byte*>(*made) : nullptr;
  }
  pagetable::Region& region() const {
    auto& space = runtime->space();
    return *space.region_at(space.granule_at(reinterpret_cast<std::uintptr_t>(memory)));
  }
  // A region of so many pages, of which those in `unwritten` are not written.
  void publish(std::uint32_t count, const std::set<std::uint32_t>& unwritten = {}) {
    memory = allocate(count * kPage);
    std::vector<std::byte> page(kPage);
    for (std::uint32_t i = 0; i < count; ++i) {
      if (unwritten.contains(i)) continue;
      fill(page, i);
      ASSERT_TRUE(runtime->copies().write(memory + i * kPage, page.data(), kPage));
    }
    freeze();
  }
  void freeze() {
    migration::FreezeRequest freeze;
    freeze.region = &region();
    freeze.first_granule = region().first.index;
    const Status frozen = runtime->mover().call(freeze);
    ASSERT_TRUE(frozen) << frozen.error().message;
    pages->add(kSerial, {&region(), key, "team"});
  }
  // By a kernel on all of it.
  void use(std::byte* at, std::uint64_t bytes, std::uint32_t access, std::function<void()> kernel) {
    gpu.make_current(0);
    const std::array range{vmem_range{at, bytes, access, 0}};
    const Status acquired = runtime->hit_path().acquire(range, stream);
    ASSERT_TRUE(acquired) << acquired.error().message;
    ASSERT_EQ(gpu.launch(stream, 0, std::move(kernel)), CUDA_SUCCESS);
    ASSERT_TRUE(runtime->hit_path().release(range, stream));
  }
  void into_hbm(std::uint32_t first, std::uint32_t count) {
    use(memory + first * kPage, count * kPage, VMEM_READ, [] {});
    gpu.synchronize(stream);
  }
  // All other pages leave HBM.
  void fill_hbm() {
    if (filler == nullptr) filler = allocate(kHbmPages * kPage);
    use(filler, kHbmPages * kPage, VMEM_WRITE, [] {});
    gpu.synchronize(stream);
    ASSERT_TRUE(runtime->requests().quiesce());
  }
  // Overwrites all that is on the disk. Its files have no name.
  void spoil_disk() const { vmem::spoil_disk(folder); }
  vmem_pointer_info places() {
    vmem_pointer_info info{};
    EXPECT_TRUE(runtime->requests().query(memory, info));
    return info;
  }

  vmem_statistics figures() const {
    vmem_statistics all{};
    all.struct_bytes = sizeof all;
    EXPECT_TRUE(runtime->statistics(all));
    return all;
  }

  std::future<Reply> ask(const sharing::SharedPage& page) {
    auto promise = std::make_shared<std::promise<Reply>>();
    auto reply = promise->get_future();
    pages->lend(page, [promise](Reply lent) { promise->set_value(std::move(lent)); });
    return reply;
  }
  static bool comes(const std::future<Reply>& reply) {
    return reply.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  }
  static bool is_here(const std::future<Reply>& reply) {
    return reply.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  Reply get(const sharing::SharedPage& page) {
    auto reply = ask(page);
    if (comes(reply)) return reply.get();
    ADD_FAILURE() << "no answer for page " << page.page;
    return std::unexpected(Answer::refused);
  }
  Reply get(std::uint32_t page) { return get(page_of(page)); }
  Answer refusal(const sharing::SharedPage& page) {
    Reply reply = get(page);
    if (!reply) return reply.error();
    reply->give_back();
    return Answer::done;
  }
  Answer refusal(std::uint32_t page) { return refusal(page_of(page)); }
  // Whether it is the page as published, with its proof.
  bool right(const LentPage& lent, std::uint32_t index) const {
    std::vector<std::byte> expected(kPage);
    fill(expected, index);
    if (lent.bytes.size() != kPage || std::memcmp(lent.bytes.data(), expected.data(), kPage) != 0) return false;
    return key->proves(expected, page_of(index), lent.tag);
  }
  bool lends(std::uint32_t index) {
    Reply reply = get(index);
    if (!reply) return false;
    const bool good = right(*reply, index);
    reply->give_back();
    return good;
  }
  static bool comes_true(const std::function<bool()>& condition) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return condition();
  }
  // Ends the region, which waits for its open pages.
  void free_to_the_end() {
    migration::FreeRequest free;
    free.region = &region();
    free.first_granule = region().first.index;
    free.joint = true;
    ASSERT_TRUE(runtime->mover().call(free));
    EXPECT_TRUE(comes_true([&] { return figures().pages == (filler == nullptr ? 0 : kHbmPages); }));
  }
};

}  // namespace vmem::test
