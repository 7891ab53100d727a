// Pages of files: a load returns the file's contents at mapping time, or is refused with the file's
// name.
#include "tiers/file/file_tier.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "campaign/seeds.hpp"
#include "tiers/faulty_queue.hpp"
#include "tiers/io/uring_queue.hpp"

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{256} << 10;

// A file of random bytes in the test's working folder; removed by the destructor.
struct RandomFile {
  explicit RandomFile(std::uint64_t size) : bytes(size) {
    std::mt19937_64 random(test::printed_seed());
    for (auto& byte : bytes) byte = std::byte(random());
    descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT_EQ(::pwrite(descriptor, bytes.data(), bytes.size(), 0), ssize_t(bytes.size()));
    EXPECT_EQ(::fsync(descriptor), 0);
  }
  ~RandomFile() {
    ::close(descriptor);
    ::unlink(path.c_str());
  }
  RandomFile(const RandomFile&) = delete;
  RandomFile& operator=(const RandomFile&) = delete;

  const std::string path = fmt::format("mapped-{}.bin", ::getpid());
  std::vector<std::byte> bytes;
  int descriptor = -1;
};

class FileTierTest : public ::testing::Test {
 protected:
  void start(std::function<Fate(const Io&)> decide = [](const Io&) { return Fate{}; }) {
    FileTier::Config config;
    config.make_queue = [decide = std::move(decide)]() -> Result<std::unique_ptr<IoQueue>> {
      VMEM_ASSIGN(auto inner, make_uring_queue({.files = {}, .depth = 8}));
      return std::make_unique<FaultyQueue>(std::move(inner), decide);
    };
    config.piece_bytes = 64u << 10;
    config.on_ready = [] {};
    tier.emplace(std::move(config));
  }
  // A mapping laid out in pages.
  struct Mapping {
    std::shared_ptr<PageSource> source;
    SlotId first = 0;
    std::uint32_t pages = 0;
  };
  Mapping map(const std::string& path, std::uint64_t offset = 0, std::uint64_t bytes = 0) {
    auto source = tier->map(path, offset, bytes);
    EXPECT_TRUE(source) << source.error().message;
    const auto pages = std::uint32_t(((*source)->bytes() + kPage - 1) / kPage);
    const auto first = (*source)->lay_out(kPage, pages);
    EXPECT_TRUE(first);
    return {*source, *first, pages};
  }
  Completion load(SlotId slot) {
    Transfer transfer;
    transfer.slot = slot;
    transfer.host = memory();
    transfer.bytes = kPage;
    EXPECT_TRUE(tier->submit({&transfer, 1}));
    tier->finish();
    std::vector<Completion> completions;
    EXPECT_TRUE(tier->poll(completions));
    EXPECT_EQ(completions.size(), 1u);
    EXPECT_EQ(completions.front().id, transfer.id);
    return completions.front();
  }
  // The contents of all pages of a mapping, from its first byte to the end of its last page.
  std::vector<std::byte> load_all(const Mapping& mapping) {
    std::vector<std::byte> all;
    for (std::uint32_t i = 0; i < mapping.pages; ++i) {
      std::memset(memory(), 0xee, kPage);
      const Completion loaded = load(mapping.first + i);
      EXPECT_EQ(loaded.outcome, Outcome::done) << loaded.error.message;
      all.insert(all.end(), memory(), memory() + kPage);
    }
    all.erase(all.begin(), all.begin() + std::ptrdiff_t(mapping.source->head_bytes()));
    return all;
  }
  std::byte* memory() { return memory_.get(); }

  std::optional<FileTier> tier;

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_{static_cast<std::byte*>(std::aligned_alloc(4096, kPage))};
};

TEST_F(FileTierTest, AnyRangeIsReadAsItIsAndFilledWithZeros) {
  const RandomFile file(3 * kPage + 12345);
  start();
  const std::uint64_t size = file.bytes.size();
  for (const auto& [offset, bytes] :
       std::initializer_list<std::pair<std::uint64_t, std::uint64_t>>{{0, 0},
                                                                      {1, 0},
                                                                      {4095, 2},
                                                                      {4096, kPage},
                                                                      {5000, kPage},
                                                                      {size - 1, 1},
                                                                      {size - 1, 0},
                                                                      {kPage - 100, 200},
                                                                      {0, kPage},
                                                                      {2 * kPage, kPage + 12345}}) {
    SCOPED_TRACE(fmt::format("{} bytes from {}", bytes, offset));
    const Mapping mapping = map(file.path, offset, bytes);
    const auto held = load_all(mapping);
    const std::uint64_t asked = bytes == 0 ? size - offset : bytes;
    ASSERT_GE(held.size(), asked);
    EXPECT_TRUE(
        std::equal(held.begin(), held.begin() + std::ptrdiff_t(asked), file.bytes.begin() + std::ptrdiff_t(offset)));
    EXPECT_TRUE(std::all_of(held.begin() + std::ptrdiff_t(asked), held.end(),
                            [](std::byte byte) { return byte == std::byte{0}; }));
  }
}

TEST_F(FileTierTest, WhatCannotBeMappedIsRefusedAndNamed) {
  const RandomFile file(10'000);
  const std::string empty = file.path + ".empty";
  ::close(::open(empty.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const std::string fifo = file.path + ".fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  start();
  const auto refuses = [&](const std::string& path, std::uint64_t offset, std::uint64_t bytes, vmem_status status,
                           const std::string& why) {
    const auto mapped = tier->map(path, offset, bytes);
    ASSERT_FALSE(mapped) << path;
    EXPECT_EQ(mapped.error().status, status);
    EXPECT_NE(mapped.error().message.find(path), std::string::npos) << mapped.error().message;
    EXPECT_NE(mapped.error().message.find(why), std::string::npos) << mapped.error().message;
  };
  refuses("/nonexistent/file", 0, 0, VMEM_ERROR_INVALID_VALUE, "No such file or directory");
  refuses("/tmp", 0, 0, VMEM_ERROR_INVALID_VALUE, "is a directory");
  refuses("/dev/null", 0, 0, VMEM_ERROR_INVALID_VALUE, "no regular file");
  refuses(fifo, 0, 0, VMEM_ERROR_INVALID_VALUE, "no regular file");
  refuses(empty, 0, 0, VMEM_ERROR_INVALID_VALUE, "nothing to map");
  refuses(file.path, 10'000, 0, VMEM_ERROR_INVALID_VALUE, "nothing to map");
  refuses(file.path, 10'001, 0, VMEM_ERROR_INVALID_RANGE, "which has 10000 bytes");
  refuses(file.path, 1, 10'000, VMEM_ERROR_INVALID_RANGE, "10000 bytes from offset 1");
  refuses(file.path, 2, ~std::uint64_t{0}, VMEM_ERROR_INVALID_RANGE, "which has 10000 bytes");
  ::unlink(empty.c_str());
  ::unlink(fifo.c_str());
}

TEST_F(FileTierTest, AFileThatShrankLosesItsPagesAndSaysFromWhatToWhat) {
  const RandomFile file(4 * kPage);
  start();
  const Mapping mapping = map(file.path);
  ASSERT_EQ(load(mapping.first).outcome, Outcome::done);
  ASSERT_EQ(::ftruncate(file.descriptor, kPage + 1), 0);
  for (const SlotId page : {0u, 1u, 3u}) {
    const Completion loaded = load(mapping.first + page);
    EXPECT_EQ(loaded.outcome, Outcome::lost);
    EXPECT_EQ(loaded.error.status, VMEM_ERROR_LOST);
    const std::string expected =
        fmt::format("{} shrank while bytes 0 to {} of it were mapped: it had {} bytes and has {}", file.path, 4 * kPage,
                    4 * kPage, kPage + 1);
    EXPECT_NE(loaded.error.message.find(expected), std::string::npos) << loaded.error.message;
  }
}

TEST_F(FileTierTest, AFileThatWasWrittenToIsFoundOut) {
  const RandomFile file(2 * kPage);
  start();
  const Mapping mapping = map(file.path);
  // Sets the time explicitly: change times are only as fine as the kernel's ticks.
  const timespec times[2] = {{0, UTIME_OMIT}, {12345, 0}};
  ASSERT_EQ(::futimens(file.descriptor, times), 0);
  const Completion loaded = load(mapping.first);
  EXPECT_EQ(loaded.outcome, Outcome::lost);
  EXPECT_NE(loaded.error.message.find("was written to"), std::string::npos) << loaded.error.message;
}

// Repeats until the file's change time differs, because the kernel's clock ticks.
void change_status(const RandomFile& file) {
  struct stat before{}, now{};
  ASSERT_EQ(::fstat(file.descriptor, &before), 0);
  do {
    ASSERT_EQ(::fchmod(file.descriptor, 0640), 0);
    ASSERT_EQ(::fstat(file.descriptor, &now), 0);
  } while (now.st_ctim.tv_sec == before.st_ctim.tv_sec && now.st_ctim.tv_nsec == before.st_ctim.tv_nsec);
}

TEST_F(FileTierTest, AChangeOfModeOrAnotherLinkLosesNoPage) {
  const RandomFile file(3 * kPage);
  start();
  const Mapping mapping = map(file.path);
  ASSERT_EQ(load(mapping.first).outcome, Outcome::done);
  change_status(file);
  ASSERT_EQ(::link(file.path.c_str(), (file.path + ".link").c_str()), 0);
  ASSERT_EQ(::unlink((file.path + ".link").c_str()), 0);
  for (int pass = 0; pass < 2; ++pass) EXPECT_EQ(load_all(mapping), file.bytes);
}

TEST_F(FileTierTest, ARewriteWithItsTimePutBackIsFoundInPagesThatWereRead) {
  const RandomFile file(3 * kPage);
  start();
  const Mapping mapping = map(file.path);
  for (const SlotId page : {0u, 1u}) ASSERT_EQ(load(mapping.first + page).outcome, Outcome::done);
  change_status(file);
  struct stat status{};
  ASSERT_EQ(::fstat(file.descriptor, &status), 0);
  const std::byte other = ~file.bytes[kPage + 5];
  ASSERT_EQ(::pwrite(file.descriptor, &other, 1, kPage + 5), 1);
  const timespec times[2] = {{0, UTIME_OMIT}, status.st_mtim};
  ASSERT_EQ(::futimens(file.descriptor, times), 0);
  EXPECT_EQ(load(mapping.first).outcome, Outcome::done) << "its bytes are as they were";
  const Completion loaded = load(mapping.first + 1);
  EXPECT_EQ(loaded.outcome, Outcome::lost);
  EXPECT_NE(loaded.error.message.find(file.path + " was written to"), std::string::npos) << loaded.error.message;
  EXPECT_NE(loaded.error.message.find(fmt::format("bytes {} to {} differ", kPage, 2 * kPage)), std::string::npos)
      << loaded.error.message;
}

TEST_F(FileTierTest, ADeletedFileIsReadAsLongAsItIsMapped) {
  const RandomFile file(2 * kPage);
  start();
  const Mapping mapping = map(file.path);
  ASSERT_EQ(::unlink(file.path.c_str()), 0);
  EXPECT_EQ(load_all(mapping), file.bytes);
}

// One request in 32 fails, one in eight ends short.
TEST_F(FileTierTest, AnUnreliableDiskGivesTheRightBytesOrSaysSo) {
  const RandomFile file(8 * kPage + 777);
  std::mt19937_64 fates(test::printed_seed());
  start([&](const Io& io) {
    if (fates() % 32 == 0) return Fate{.error = EIO};
    if (fates() % 8 == 0) return Fate{.moves_bytes = std::uint32_t(1 + fates() % (io.bytes / 4096)) * 4096};
    return Fate{};
  });
  const Mapping mapping = map(file.path);
  int failures = 0;
  for (std::uint32_t i = 0; i < 2'000; ++i) {
    const std::uint32_t page = i % mapping.pages;
    const Completion loaded = load(mapping.first + page);
    ASSERT_NE(loaded.outcome, Outcome::lost) << "the bytes are all there: " << loaded.error.message;
    if (loaded.outcome == Outcome::failed) {
      ++failures;
      EXPECT_NE(loaded.error.message.find(file.path + ": Input/output error (3 tries)"), std::string::npos)
          << loaded.error.message;
      continue;
    }
    const std::uint64_t begin = page * kPage, bytes = std::min(kPage, file.bytes.size() - begin);
    ASSERT_EQ(std::memcmp(memory(), file.bytes.data() + begin, bytes), 0) << "page " << page;
  }
  EXPECT_LT(failures, 200) << "most are mended by another try";
}

TEST_F(FileTierTest, AFileSystemThatRefusesDirectReadsIsReadThroughThePageCache) {
  const RandomFile file(3 * kPage + 5);
  start([](const Io& io) { return (::fcntl(int(io.file), F_GETFL) & O_DIRECT) != 0 ? Fate{.error = EINVAL} : Fate{}; });
  const Mapping mapping = map(file.path);
  auto held = load_all(mapping);
  held.resize(file.bytes.size());
  EXPECT_EQ(held, file.bytes);
}

// tmpfs lacked direct I/O for most of its life; where it has it, this is one more file.
TEST_F(FileTierTest, AFileInMemoryIsReadWhateverItsFileSystemHas) {
  std::error_code none;
  if (!std::filesystem::is_directory("/dev/shm", none)) GTEST_SKIP() << "no /dev/shm";
  const RandomFile original(2 * kPage + 9);
  const std::string copy = "/dev/shm/" + original.path;
  std::filesystem::copy_file(original.path, copy, std::filesystem::copy_options::overwrite_existing);
  start();
  auto held = load_all(map(copy));
  std::filesystem::remove(copy);
  held.resize(original.bytes.size());
  EXPECT_EQ(held, original.bytes);
}

TEST_F(FileTierTest, SeveralMappingsHaveSlotsOfTheirOwnAndGiveThemBack) {
  const RandomFile file(4 * kPage);
  start();
  const Mapping whole = map(file.path);
  SlotId second = 0;
  {
    const Mapping part = map(file.path, kPage, kPage);
    second = part.first;
    EXPECT_GE(part.first, whole.first + whole.pages);
    EXPECT_EQ(load(part.first).outcome, Outcome::done);
    EXPECT_EQ(std::memcmp(memory(), file.bytes.data() + kPage, kPage), 0);
  }
  EXPECT_EQ(map(file.path, 2 * kPage, kPage).first, second) << "the gap is used again";
  EXPECT_EQ(load_all(whole), file.bytes);
}

TEST_F(FileTierTest, StoringIsRefused) {
  const RandomFile file(kPage);
  start();
  const Mapping mapping = map(file.path);
  Transfer transfer;
  transfer.slot = mapping.first;
  transfer.host = memory();
  transfer.bytes = kPage;
  transfer.direction = Direction::store;
  const Status refused = tier->submit({&transfer, 1});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, VMEM_ERROR_INTERNAL);
}

}  // namespace
}  // namespace vmem::tiers
