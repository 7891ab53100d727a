// Files read straight into frames by the emulated cuFile: by the reader itself, and by tiers that
// use it.
#include "tiers/io/gds_reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <latch>
#include <random>

#include "base/file_descriptor.hpp"
#include "tiers/disk_fixture.hpp"
#include "tiers/file/file_tier.hpp"
#include "tiers/tier_fixture.hpp"

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kPage = pagetable::kGranuleBytes;
constexpr std::uint32_t kPages = 3;

// A file of random bytes in the test's working folder; removed by the destructor.
struct RandomFile {
  explicit RandomFile(std::uint64_t size, int flags = 0) : bytes(size) {
    std::mt19937_64 random(7);
    for (auto& byte : bytes) byte = std::byte(random());
    descriptor = FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | flags, 0600));
    EXPECT_EQ(::pwrite(descriptor.get(), bytes.data(), bytes.size(), 0), ssize_t(bytes.size()));
    EXPECT_EQ(::fsync(descriptor.get()), 0);
  }
  ~RandomFile() { ::unlink(path.c_str()); }
  RandomFile(const RandomFile&) = delete;
  RandomFile& operator=(const RandomFile&) = delete;

  const std::string path = fmt::format("gds-{}.bin", ::getpid());
  std::vector<std::byte> bytes;
  FileDescriptor descriptor;
};

struct GdsReaderTest : ::testing::Test {
  void start(const char* cufile, gpu::CuFile::Accept accept = gpu::CuFile::Accept::direct) {
    machine.emplace(fmt::format("devices=1,hbm=64MiB,host=64MiB,cufile={}", cufile).c_str());
    GdsReader::Config config;
    config.driver = machine->driver;
    config.accept = accept;
    config.devices = {{machine->context.context(), 0}};
    config.threads = 3;
    reader = std::make_shared<GdsReader>(std::move(config));
    FramePool::Config pool;
    pool.driver = machine->driver;
    pool.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    pool.accessors = {pool.location};
    pool.budget_bytes = kPages * kPage;
    pool.name = "HBM";
    frames.emplace(std::move(pool));
  }
  // A frame filled with other bytes.
  CUdeviceptr frame() {
    const CUdeviceptr window = frames->frame(**frames->take(kPage)).window;
    const std::vector<std::byte> other(kPage, std::byte{0xee});
    EXPECT_EQ((*machine->driver)->cuMemcpyHtoDAsync(window, other.data(), kPage, nullptr), CUDA_SUCCESS);
    EXPECT_EQ((*machine->driver)->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    return window;
  }
  bool holds(CUdeviceptr frame, const std::byte* bytes) const {
    std::vector<std::byte> found(kPage);
    EXPECT_EQ((*machine->driver)->cuMemcpyDtoHAsync(found.data(), frame, kPage, nullptr), CUDA_SUCCESS);
    EXPECT_EQ((*machine->driver)->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    return std::memcmp(found.data(), bytes, kPage) == 0;
  }
  Status read(const FrameReader::File& file, std::uint64_t offset, CUdeviceptr into, std::uint64_t bytes = kPage) {
    std::latch done(1);
    Status result;
    FrameReader::Read read{.file = &file, .offset = offset, .bytes = bytes, .frame = into, .device = 0, .done = {}};
    read.done = [&](Status status) {
      result = std::move(status);
      done.count_down();
    };
    reader->post(std::move(read));
    done.wait();
    return result;
  }
  // Runs one transfer of a tier to its end.
  static Completion move(Tier& tier, Transfer transfer) {
    transfer.bytes = kPage;
    EXPECT_TRUE(tier.submit({&transfer, 1}));
    tier.finish();
    std::vector<Completion> completions;
    EXPECT_TRUE(tier.poll(completions));
    EXPECT_EQ(completions.size(), 1u);
    return completions.front();
  }

  std::optional<TierMachine> machine;
  std::shared_ptr<GdsReader> reader;
  std::optional<FramePool> frames;
};

TEST_F(GdsReaderTest, BytesComeIntoFrames) {
  start("direct");
  const RandomFile file(4 * kPage);
  const auto opened = reader->open(file.descriptor.get());
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(reader->describe(), "emulated cuFile");
  const CUdeviceptr first = frame(), second = frame();
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(read(**opened, kPage, first));
    EXPECT_TRUE(holds(first, file.bytes.data() + kPage));
    ASSERT_TRUE(read(**opened, 3 * kPage, second));
    EXPECT_TRUE(holds(second, file.bytes.data() + 3 * kPage));
  }
}

TEST_F(GdsReaderTest, ReadsOfManyFramesAreUnderWayAtATime) {
  start("direct");
  const RandomFile file(kPages * kPage);
  const auto opened = reader->open(file.descriptor.get());
  ASSERT_TRUE(opened);
  std::latch done(kPages);
  std::vector<CUdeviceptr> into;
  for (std::uint32_t i = 0; i < kPages; ++i) {
    into.push_back(frame());
    FrameReader::Read read{
        .file = opened->get(), .offset = i * kPage, .bytes = kPage, .frame = into.back(), .device = 0, .done = {}};
    // Every callback blocks until all reads have been carried out.
    read.done = [&](Status status) {
      EXPECT_TRUE(status);
      done.arrive_and_wait();
    };
    reader->post(std::move(read));
  }
  done.wait();
  for (std::uint32_t i = 0; i < kPages; ++i) EXPECT_TRUE(holds(into[i], file.bytes.data() + i * kPage)) << i;
}

TEST_F(GdsReaderTest, FilesThatWereOpenedInWaysThatCuFileRefusesAreOpenedAnew) {
  start("direct");
  const FileDescriptor unnamed(::open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  ASSERT_TRUE(unnamed) << std::strerror(errno);
  ASSERT_EQ(::pwrite(unnamed.get(), "twelve bytes", 12, 0), 12);
  EXPECT_TRUE(reader->open(unnamed.get()));
  const RandomFile file(kPage, O_NONBLOCK);
  EXPECT_TRUE(reader->open(file.descriptor.get()));
}

TEST_F(GdsReaderTest, WhatCannotBeReadSoIsRefusedWithTheReason) {
  start("direct");
  const FileDescriptor in_memory(::memfd_create("gds_reader_test", MFD_CLOEXEC));
  ASSERT_EQ(::pwrite(in_memory.get(), "x", 1, 0), 1);
  const auto refused = reader->open(in_memory.get());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, VMEM_ERROR_UNSUPPORTED);
  const RandomFile empty(0);
  const auto of_nothing = reader->open(empty.descriptor.get());
  ASSERT_FALSE(of_nothing);
  EXPECT_EQ(of_nothing.error().message, "cannot be tried out: it is empty");
}

TEST_F(GdsReaderTest, AReadOverTheEndOfAFileFails) {
  start("direct");
  const RandomFile file(kPage + 4096);
  const auto opened = reader->open(file.descriptor.get());
  ASSERT_TRUE(opened);
  const Status cut = read(**opened, kPage, frame());
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().message, "4 KiB of 2 MiB came from offset 2097152: the file ends there");
}

TEST_F(GdsReaderTest, CompatibilityModeIsTakenOnlyWhereItWasAskedFor) {
  const RandomFile file(kPage);
  start("compat");
  const auto refused = reader->open(file.descriptor.get());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, VMEM_ERROR_UNSUPPORTED);
  EXPECT_EQ(reader->open(file.descriptor.get()).error().message, refused.error().message)
      << "and it is not tried again";
  frames.reset();
  reader.reset();
  start("compat", gpu::CuFile::Accept::any);
  const auto opened = reader->open(file.descriptor.get());
  ASSERT_TRUE(opened) << opened.error().message;
  const CUdeviceptr into = frame();
  ASSERT_TRUE(read(**opened, 0, into));
  EXPECT_TRUE(holds(into, file.bytes.data()));
}

TEST_F(GdsReaderTest, WholePagesOfAMappedFileComeIntoFrames) {
  start("direct");
  const RandomFile file(2 * kPage + 5000);
  FileTier tier({.make_queue = [] { return make_uring_queue({.files = {}, .depth = 8}); },
                 .on_ready = [] {},
                 .frame_reader = reader});
  const auto source = tier.map(file.path, 0, 0);
  ASSERT_TRUE(source);
  const SlotId first = *(*source)->lay_out(kPage, 3);
  EXPECT_TRUE(tier.loads_into_frames(first, 0));
  EXPECT_TRUE(tier.loads_into_frames(first + 1, 0));
  EXPECT_FALSE(tier.loads_into_frames(first + 2, 0)) << "the file ends in it";
  const CUdeviceptr into = frame();
  EXPECT_EQ(move(tier, {.slot = first + 1, .frame = into}).outcome, Outcome::done);
  EXPECT_TRUE(holds(into, file.bytes.data() + kPage));
  // Truncates the file behind the page.
  ASSERT_EQ(::ftruncate(file.descriptor.get(), off_t(2 * kPage)), 0);
  const Completion changed = move(tier, {.slot = first, .frame = into});
  EXPECT_EQ(changed.outcome, Outcome::lost);
  EXPECT_NE(changed.error.message.find(file.path), std::string::npos) << changed.error.message;
}

// A trial opens the file once more, so the number of open files shows it.
TEST_F(GdsReaderTest, AFileWithoutAWholePageIsNotTriedOut) {
  start("direct");
  const auto open_files = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}); };
  FileTier tier({.make_queue = [] { return make_uring_queue({.files = {}, .depth = 8}); },
                 .on_ready = [] {},
                 .frame_reader = reader});
  const RandomFile file(kPage);
  const auto first = tier.map(file.path, 0, 0);  // also opens everything that is opened only once
  ASSERT_TRUE(first);
  const auto before = open_files();
  const auto small = tier.map(file.path, 0, kPage - 1);
  EXPECT_EQ(open_files(), before + 1);
  const auto whole = tier.map(file.path, 0, kPage);
  EXPECT_GT(open_files(), before + 2);
}

TEST_F(GdsReaderTest, PagesOfTheDiskTierComeIntoFramesIfTheyAreStoredAsTheyAre) {
  start("direct");
  for (const char* codec : {"off", "lz4"}) {
    SCOPED_TRACE(codec);
    DiskTier::Config config;
    config.directories = {{kTestDirectory, 512u << 20}};
    config.make_queue = uring();
    config.compression = compression(codec);
    config.on_ready = [] {};
    config.frame_reader = reader;
    const auto tier = std::move(*DiskTier::create(std::move(config)));
    SlotGrant grant;
    while (grant.grant != Grant::granted) grant = *tier->allocate(kPage);
    EXPECT_FALSE(tier->loads_into_frames(grant.slot, 0)) << "nothing is there";
    const std::unique_ptr<std::byte, decltype(&std::free)> page(
        static_cast<std::byte*>(std::aligned_alloc(4096, kPage)), &std::free);
    std::mt19937_64 random(1);
    fill_half(page.get(), kPage, random);
    const Transfer store{.version = 3, .slot = grant.slot, .host = page.get(), .direction = Direction::store};
    ASSERT_EQ(move(*tier, store).outcome, Outcome::done);
    const bool as_it_is = std::string_view(codec) == "off";
    EXPECT_EQ(tier->loads_into_frames(grant.slot, 0), as_it_is);
    if (as_it_is) {
      const CUdeviceptr into = frame();
      EXPECT_EQ(move(*tier, {.version = 3, .slot = grant.slot, .frame = into}).outcome, Outcome::done);
      EXPECT_TRUE(holds(into, page.get()));
      EXPECT_EQ(move(*tier, {.version = 2, .slot = grant.slot, .frame = into}).outcome, Outcome::lost);
    }
    tier->release(grant.slot);
    EXPECT_FALSE(tier->loads_into_frames(grant.slot, 0));
  }
}

}  // namespace
}  // namespace vmem::tiers
