// Benchmarks must detect kernels that compute wrong results, and report where.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "bench/context.hpp"
#include "bench/kernels/twins.hpp"
#include "gpu/emu/emu.h"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kBadWord = 12'345;  // index in every chunk

template <class T>
T parameter(const vmem_emu_launch* launch, unsigned index) {
  return *static_cast<T*>(launch->params[index]);
}

// Like the twin, but skips one word of every chunk.
void increment_all_but_one(const vmem_emu_launch* launch) {
  auto* words = parameter<std::uint64_t*>(launch, 0);
  twins::increment(words, parameter<std::uint64_t>(launch, 1), parameter<std::uint64_t>(launch, 2));
  words[kBadWord] -= parameter<std::uint64_t>(launch, 2);
}

// Like the twin, but does not read the last word of every chunk.
void checksum_of_all_but_one(const vmem_emu_launch* launch) {
  twins::checksum(parameter<const std::uint64_t*>(launch, 0), parameter<std::uint64_t>(launch, 1),
                  parameter<std::uint64_t>(launch, 2) - 1, parameter<std::uint64_t*>(launch, 3));
}

class MismatchTest : public testing::Test {
 protected:
  void SetUp() override {
    settings_.hbm_bytes = std::uint64_t{32} << 20;
    settings_.repeats = 1;
    settings_.passes = 1;
    auto gpu = Gpu::open("emulated", 0);
    ASSERT_TRUE(gpu) << gpu.error().message;
    gpu_ = std::move(*gpu);
  }

  // Runs the stream scenario with kernel `name` replaced, and returns its record.
  Record stream_with(const char* name, vmem_emu_kernel function, std::vector<std::size_t> parameter_bytes) {
    auto launcher = Launcher::load(*gpu_).value();
    void* library = dlopen(gpu_->driver().path().c_str(), RTLD_NOW | RTLD_NOLOAD);
    const auto replace =
        reinterpret_cast<decltype(&vmem_emu_register_kernel)>(dlsym(library, "vmem_emu_register_kernel"));
    EXPECT_EQ(replace(name, function, parameter_bytes.data(), static_cast<unsigned>(parameter_bytes.size())), 0);
    Progress progress(stderr);
    std::vector<Record> records;
    RowPrinter rows(*gpu_);
    Context context{settings_, *gpu_, launcher, progress, records, rows};
    const Status status = run_stream(context);
    EXPECT_TRUE(status) << status.error().message;
    return records.empty() ? Record{} : records.front();
  }

  Settings settings_;
  std::unique_ptr<Gpu> gpu_;
};

TEST_F(MismatchTest, AWordThatWasNotWrittenIsFoundWithItsOffset) {
  settings_.mode = "rw";
  const Record record = stream_with(kernels::increment.name, increment_all_but_one, {8, 8, 8});
  EXPECT_FALSE(record.verified);
  EXPECT_NE(record.mismatch.find("byte offset " + std::to_string(kBadWord * 8)), std::string::npos) << record.mismatch;
}

TEST_F(MismatchTest, AReaderOfWrongBytesIsFoundThoughTheRegionIsRight) {
  settings_.mode = "ro";
  const Record record = stream_with(kernels::checksum.name, checksum_of_all_but_one, {8, 8, 8, 8});
  EXPECT_FALSE(record.verified);
  EXPECT_NE(record.mismatch.find("checksum"), std::string::npos);
  EXPECT_NE(record.mismatch.find("right now"), std::string::npos) << record.mismatch;
}

}  // namespace
}  // namespace vmem::bench
