// Runs every kernel through the driver: compares compiled kernels with their twins on a GPU, and
// tests the twins' registration without one.
#include "bench/launcher.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "bench/kernels/twins.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kSeed = 3;

class LauncherTest : public testing::Test {
 protected:
  void SetUp() override {
    auto gpu = Gpu::open("auto", 0);
    ASSERT_TRUE(gpu) << gpu.error().message;
    gpu_ = std::move(*gpu);
    auto launcher = Launcher::load(*gpu_);
    if (!launcher && launcher.error().status == VMEM_ERROR_UNSUPPORTED) GTEST_SKIP() << launcher.error().message;
    ASSERT_TRUE(launcher) << launcher.error().message;
    launcher_.emplace(std::move(*launcher));
    stream_ = make_stream(*gpu_).value();
  }

  // Device memory with a copy of `from`.
  template <class T>
  DeviceMemory upload(const std::vector<T>& from) {
    auto memory = allocate_device(*gpu_, from.size() * sizeof(T)).value();
    EXPECT_EQ(gpu_->table().cuMemcpyHtoDAsync(memory.get(), from.data(), from.size() * sizeof(T), stream_.get()),
              CUDA_SUCCESS);
    return memory;
  }
  template <class T>
  std::vector<T> download(const DeviceMemory& memory, std::size_t count) {
    std::vector<T> out(count);
    EXPECT_EQ(gpu_->table().cuMemcpyDtoHAsync(out.data(), memory.get(), count * sizeof(T), stream_.get()),
              CUDA_SUCCESS);
    EXPECT_TRUE(stream_.synchronize());
    return out;
  }
  template <class T>
  static T* pointer(const DeviceMemory& memory) {
    return reinterpret_cast<T*>(memory.get());
  }

  std::unique_ptr<Gpu> gpu_;
  std::optional<Launcher> launcher_;
  Stream stream_;
};

std::vector<std::uint64_t> pattern(std::uint64_t count) {
  std::vector<std::uint64_t> words(count);
  twins::fill(words.data(), 0, count, kSeed);
  return words;
}

TEST_F(LauncherTest, FillsIncrementsAndVerifies) {
  constexpr std::uint64_t kCount = 100'002;
  const auto words = upload(std::vector<std::uint64_t>(kCount));
  const auto bad = upload(std::vector<std::uint64_t>{~std::uint64_t{0}, 0});
  ASSERT_TRUE(launcher_->launch(kernels::fill, 7, stream_.get(), pointer<std::uint64_t>(words), 0, kCount, kSeed));
  ASSERT_TRUE(launcher_->launch(kernels::increment, 7, stream_.get(), pointer<std::uint64_t>(words), kCount, 5));
  auto expected = pattern(kCount);
  twins::increment(expected.data(), kCount, 5);
  EXPECT_EQ(download<std::uint64_t>(words, kCount), expected);
  ASSERT_TRUE(launcher_->launch(kernels::verify, 7, stream_.get(), pointer<std::uint64_t>(words), 0, kCount, kSeed, 5,
                                pointer<std::uint64_t>(bad)));
  EXPECT_EQ(download<std::uint64_t>(bad, 2), (std::vector<std::uint64_t>{~std::uint64_t{0}, 0}));
  ASSERT_TRUE(launcher_->launch(kernels::verify, 7, stream_.get(), pointer<std::uint64_t>(words), 0, kCount, kSeed, 6,
                                pointer<std::uint64_t>(bad)));
  EXPECT_EQ(download<std::uint64_t>(bad, 2), (std::vector<std::uint64_t>{0, kCount}));
}

TEST_F(LauncherTest, ChecksumsEqualTheTwins) {
  constexpr std::uint64_t kCount = 160'000;
  const auto host = pattern(kCount);
  const auto words = upload(host);
  const auto sums = upload(std::vector<std::uint64_t>(4));
  auto* const sum = pointer<std::uint64_t>(sums);
  const auto* const from = pointer<const std::uint64_t>(words);
  ASSERT_TRUE(launcher_->launch(kernels::checksum, 9, stream_.get(), from, 11, kCount, sum));
  ASSERT_TRUE(launcher_->launch(kernels::blocks, 9, stream_.get(), from, kCount, 0, sum + 1));
  ASSERT_TRUE(launcher_->launch(kernels::blocks, 9, stream_.get(), from, kCount, 1, sum + 2));
  ASSERT_TRUE(launcher_->launch(kernels::random, 9, stream_.get(), from, kCount / 16, 5'001, 77, sum + 3));
  std::vector<std::uint64_t> expected(4);
  twins::checksum(host.data(), 11, kCount, &expected[0]);
  twins::blocks(host.data(), kCount, 0, &expected[1]);
  twins::blocks(host.data(), kCount, 1, &expected[2]);
  twins::random(host.data(), kCount / 16, 5'001, 77, &expected[3]);
  EXPECT_EQ(download<std::uint64_t>(sums, 4), expected);
}

TEST_F(LauncherTest, HistogramEqualsTheTwin) {
  const auto host = pattern(50'000);
  const auto words = upload(host);
  const auto bins = upload(std::vector<std::uint64_t>(256));
  const std::uint64_t bytes = host.size() * 8 - 5;
  ASSERT_TRUE(launcher_->launch(kernels::histogram, 9, stream_.get(), pointer<const std::uint8_t>(words), bytes,
                                pointer<std::uint64_t>(bins)));
  std::vector<std::uint64_t> expected(256);
  twins::histogram(reinterpret_cast<const std::uint8_t*>(host.data()), bytes, expected.data());
  EXPECT_EQ(download<std::uint64_t>(bins, 256), expected);
}

TEST_F(LauncherTest, MatmulEqualsTheTwin) {
  constexpr std::uint32_t kEdge = 2 * kernels::kMatmulBlock;
  constexpr std::size_t kEntries = kEdge * kEdge;
  const auto a = upload(std::vector<float>(kEntries));
  const auto b = upload(std::vector<float>(kEntries));
  const auto c = upload(std::vector<float>(kEntries));
  ASSERT_TRUE(launcher_->launch(kernels::matrix_fill, 9, stream_.get(), pointer<float>(a), kEdge, 0, kEdge, 1));
  ASSERT_TRUE(launcher_->launch(kernels::matrix_fill, 9, stream_.get(), pointer<float>(b), kEdge, kEdge, 0, 2));
  for (const bool accumulate : {false, true})
    ASSERT_TRUE(launcher_->launch_matmul(stream_.get(), pointer<float>(a), pointer<float>(b), pointer<float>(c), kEdge,
                                         accumulate));
  std::vector<float> host_a(kEntries), host_b(kEntries), expected(kEntries);
  twins::matrix_fill(host_a.data(), kEdge, 0, kEdge, 1);
  twins::matrix_fill(host_b.data(), kEdge, kEdge, 0, 2);
  for (const std::uint32_t accumulate : {0u, 1u})
    twins::matmul(host_a.data(), host_b.data(), expected.data(), kEdge, accumulate);
  EXPECT_EQ(download<float>(a, kEntries), host_a);
  EXPECT_EQ(download<float>(c, kEntries), expected);
}

TEST_F(LauncherTest, DeviceThatDoesNotExistIsNamed) {
  const auto gpu = Gpu::open("auto", 99);
  ASSERT_FALSE(gpu);
  EXPECT_EQ(gpu.error().status, VMEM_ERROR_INVALID_OPTION);
  EXPECT_NE(gpu.error().message.find("99"), std::string::npos);
}

}  // namespace
}  // namespace vmem::bench
