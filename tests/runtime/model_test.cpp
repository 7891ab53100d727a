// Random programs on small machines, compared with a reference model. Several threads make all
// kinds of calls at once; kernels check the memory as they run. A failure prints its seed: repeat
// with --seed=N or VMEM_TEST_SEED=N. VMEM_TEST_SEEDS: number of seeds; VMEM_TEST_FIRST_SEED: the
// first.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <thread>

#include "campaign/seeds.hpp"
#include "runtime/model_worker.hpp"
#include "runtime/remote/daemon.hpp"

namespace vmem::test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSeeds = 100;
#elif defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSeeds = 200;
#elif defined(NDEBUG)
constexpr std::uint64_t kSeeds = 600;
#else
constexpr std::uint64_t kSeeds = 300;
#endif

#define ASSERT_OK(call) ASSERT_EQ(call, VMEM_OK) << vmem_last_error()

class ModelRun {
 public:
  explicit ModelRun(std::uint64_t seed) : plan_(seed), gpu_(plan_.machine()) {}

  // After a failure, so that the next seed finds the machine clean.
  ~ModelRun() { (void)vmem_shutdown(); }

  void run() {
    std::printf("%s\n", plan_.words().c_str());
    std::fflush(stdout);
    std::vector<vmem_option> options;
    start_lender();
    if (::testing::Test::HasFailure()) return;
    const auto given = plan_.options();
    for (const auto& [name, value] : given) options.push_back({name.c_str(), value.c_str()});
    if (lender_) options.push_back({"remote", lender_->address().c_str()});
    ASSERT_OK(vmem_init(options.data(), options.size()));
    make_shared();
    if (::testing::Test::HasFailure()) return;
    run_threads();
    ASSERT_FALSE(verdict_.failed()) << verdict_.words() << trace_;
    free_shared();
    expect_nothing_left();
    ASSERT_OK(vmem_shutdown());
  }

 private:
  void start_lender() {
    if (plan_.remote_mib == 0) return;
    runtime::DaemonOptions lending;
    lending.listen = "127.0.0.1:0";
    lending.lend_bytes = plan_.remote_mib * kMiB;
    auto lender = runtime::Daemon::start(lending);
    ASSERT_TRUE(lender) << lender.error().message;
    lender_ = *std::move(lender);
  }

  void make_shared() {
    Random random(plan_.seed);
    const std::size_t sizes[] = {5 * kMiB + 123, 3 * kMiB, plan_.small ? 70'000u : 2 * kMiB};
    for (const std::size_t bytes : sizes) {
      const int device = int(random.below(std::uint64_t(plan_.devices)));
      void* memory = nullptr;
      if (vmem_malloc(&memory, bytes, device, nullptr) == VMEM_ERROR_OUT_OF_MEMORY) continue;
      ASSERT_NE(memory, nullptr) << vmem_last_error();
      ModelAllocation& allocation = shared_.emplace_back(memory, bytes, device);
      gpu_.make_current(device);
      for (int i = 0; i < 6; ++i) {
        std::vector<std::byte> data(random.between(1, 3000), std::byte(random.below(256)));
        const std::size_t offset = random.below(bytes - data.size() + 1);
        allocation.shadow.write(offset, data);
        ASSERT_OK(vmem_memcpy(allocation.base + offset, data.data(), data.size(), nullptr));
      }
    }
  }

  void run_threads() {
    std::deque<ModelWorker> workers;
    std::vector<std::thread> threads;
    for (int i = 0; i < plan_.threads; ++i) workers.emplace_back(plan_, gpu_, verdict_, shared_, i);
    for (ModelWorker& worker : workers) threads.emplace_back([&worker] { worker.run(); });
    for (std::thread& thread : threads) thread.join();
    for (const ModelWorker& worker : workers) trace_ += worker.trace();
  }

  void free_shared() {
    for (const ModelAllocation& allocation : shared_) ASSERT_OK(vmem_free(allocation.base, nullptr));
  }

  void expect_nothing_left() {
    ASSERT_OK(vmem_quiesce());
    vmem_statistics stats{};
    stats.struct_bytes = sizeof stats;
    ASSERT_OK(vmem_stats(&stats));
    EXPECT_EQ(stats.allocated_bytes, 0u);
    // The suballocator keeps cached blocks and spare slabs.
    if (plan_.small) {
      EXPECT_LE(stats.hbm_used_bytes, stats.committed_bytes);
      return;
    }
    EXPECT_EQ(stats.committed_bytes, 0u);
    EXPECT_EQ(stats.pages, 0u);
    EXPECT_EQ(stats.hbm_used_bytes, 0u);
    EXPECT_EQ(stats.host_used_bytes, 0u);
  }

  const ModelPlan plan_;
  std::unique_ptr<runtime::Daemon> lender_;
  EmulatedGpu gpu_;
  Verdict verdict_;
  std::deque<ModelAllocation> shared_;
  std::string trace_;
};

class Model : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Model, RandomProgramsSeeWhatTheReferenceModelSays) {
  run_seeds(GetParam(), kSeeds, [](std::uint64_t seed) {
    ModelRun(seed).run();
    if (HasFailure()) return;
    // The driver refuses while anything of this test is left.
    EXPECT_EQ(configure_emulated("devices=1"), "") << "something is left in the driver";
  });
}

INSTANTIATE_TEST_SUITE_P(Seeds, Model, ::testing::Range<std::uint64_t>(0, kShards));

}  // namespace
}  // namespace vmem::test
