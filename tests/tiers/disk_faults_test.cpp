// Disk faults: a load returns the page or is refused, and no other page is affected.
#include <gtest/gtest.h>

#include <random>

#include "campaign/seeds.hpp"
#include "tiers/disk_fixture.hpp"
#include "tiers/faulty_queue.hpp"
#include "tiers/scripted_disk.hpp"

namespace vmem::tiers {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kPage = std::uint64_t{128} << 10;
constexpr int kFlips = 500;
#else
constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
constexpr int kFlips = 10'000;
#endif
constexpr std::uint64_t kSmallPage = std::uint64_t{64} << 10;

void expect_says(const Error& error, std::string_view words) {
  EXPECT_NE(error.message.find(words), std::string::npos) << error.message;
}

// A tier over a scripted disk; `disk` is valid as long as the fixture.
struct Faulty {
  Faulty(std::uint64_t page_bytes, std::uint64_t pages, ScriptedDisk::Decide decide, std::string_view codec = "off",
         std::size_t directories = 1)
      : fixture(
            page_bytes, pages * page_bytes,
            [&](const std::vector<int>&) -> Result<std::unique_ptr<IoQueue>> {
              auto made = std::make_unique<ScriptedDisk>(std::move(decide));
              disk = made.get();
              return made;
            },
            directories, compression(codec)) {}
  ScriptedDisk* disk = nullptr;
  DiskFixture fixture;
};

// A disk that fails one request in 32 and ends one in 16 short. No write fails three times in a
// row: that would take the disk out of service.
class Unreliable {
 public:
  Fate operator()(const Io& io, std::mt19937_64& random) {
    const bool read = io.kind == Io::Kind::read;
    if (random() % 32 == 0 && (read || failed_writes_ < 2)) {
      failed_writes_ += read ? 0 : 1;
      return Fate{.error = EIO};
    }
    if (random() % 16 == 0) return Fate{.moves_bytes = std::uint32_t(1 + random() % (io.bytes / 4096)) * 4096};
    if (!read) failed_writes_ = 0;
    return Fate{};
  }

 private:
  int failed_writes_ = 0;  // since the last complete write
};

void fill_randomly(std::byte* memory, std::uint64_t bytes, std::mt19937_64& random) {
  for (std::uint64_t at = 0; at < bytes; at += 8) {
    const std::uint64_t word = random();
    std::memcpy(memory + at, &word, 8);
  }
}

// Tears a write of a page at `first` and at every `stride` bytes after it. The only slot begins at
// the file's start, with the header.
void expect_torn_writes_are_found_out(std::uint64_t page_bytes, std::uint64_t first, std::uint64_t stride,
                                      std::mt19937_64& random) {
  std::uint64_t cut = 0;
  bool tearing = false;
  Faulty faulty(page_bytes, 1, [&](const Io& io) {
    if (!tearing || io.kind == Io::Kind::read) return Fate{};
    if (io.offset + io.bytes <= cut) return Fate{};
    return Fate{.moves_bytes = std::uint32_t(cut > io.offset ? cut - io.offset : 0), .torn = true};
  });
  DiskFixture& disk = faulty.fixture;
  const SlotId slot = disk.slot();
  fill_randomly(disk.memory(0), page_bytes, random);
  std::uint64_t version = 1;
  ASSERT_EQ(disk.move(Direction::store, slot, 0, version).outcome, Outcome::done);
  tearing = true;
  for (cut = first; cut < page_bytes + kHeaderBytes; cut += stride) {
    // Eight new bytes per sector make every sector differ from its old contents.
    for (std::uint64_t at = 0; at < page_bytes; at += ScriptedDisk::kSector) {
      const std::uint64_t word = random();
      std::memcpy(disk.memory(0) + at, &word, sizeof(word));
    }
    ASSERT_EQ(disk.move(Direction::store, slot, 0, ++version).outcome, Outcome::done) << "the disk said so";
    const Completion loaded = disk.move(Direction::load, slot, 1, version);
    ASSERT_EQ(loaded.outcome, Outcome::lost) << "cut " << cut;
    ASSERT_NE(loaded.error.message.find("checksum differs"), std::string::npos) << loaded.error.message;
  }
}

TEST(DiskFaults, AWriteTornAtAnySectorIsFoundOut) {
  std::mt19937_64 random(test::printed_seed());
  constexpr std::uint64_t kSector = ScriptedDisk::kSector, kStride = 37 * kSector;
  expect_torn_writes_are_found_out(std::uint64_t{128} << 10, 0, kSector, random);
  // A page of many requests, at every 37th sector from a random one on.
  expect_torn_writes_are_found_out(std::uint64_t{2} << 20, random() % 37 * kSector, kStride, random);
}

TEST(DiskFaults, EveryFlippedBitIsFoundOut) {
  Faulty faulty(kSmallPage, 4, [](const Io&) { return Fate{}; });
  DiskFixture& disk = faulty.fixture;
  std::mt19937_64 random(test::printed_seed());
  const SlotId slot = disk.slot(), other = disk.slot();
  fill_randomly(disk.memory(0), kSmallPage, random);
  ASSERT_EQ(disk.move(Direction::store, slot, 0, 1).outcome, Outcome::done);
  ASSERT_EQ(disk.move(Direction::store, other, 0, 1, 7).outcome, Outcome::done);
  for (int i = 0; i < kFlips; ++i) {
    // A bit of the page or of the used part of its header.
    const std::uint64_t bit = random() % ((kSmallPage + sizeof(SlotHeader)) * 8);
    const std::uint64_t byte = bit / 8 < sizeof(SlotHeader) ? bit / 8 : kHeaderBytes + bit / 8 - sizeof(SlotHeader);
    faulty.disk->flip(0, byte * 8 + bit % 8);
    ASSERT_EQ(disk.move(Direction::load, slot, 1, 1).outcome, Outcome::lost)
        << "bit " << bit % 8 << " of byte " << byte;
    faulty.disk->flip(0, byte * 8 + bit % 8);
  }
  EXPECT_EQ(disk.move(Direction::load, slot, 1, 1).outcome, Outcome::done);
  EXPECT_EQ(disk.move(Direction::load, other, 1, 1, 7).outcome, Outcome::done) << "its neighbour";
  EXPECT_EQ(std::memcmp(disk.memory(0), disk.memory(1), kSmallPage), 0);
}

// The same faults on compressed pages. Only a part of the last block is significant, and a damaged
// form may still decompress to the page.
class CompressedDiskFaults : public testing::TestWithParam<const char*> {
 protected:
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  static constexpr std::uint64_t kCompressedPage = std::uint64_t{64} << 10;
#else
  static constexpr std::uint64_t kCompressedPage = std::uint64_t{512} << 10;
#endif
  static std::uint64_t stored_bytes(DiskFixture& disk) { return disk.tier().compression().out_bytes; }
};

TEST_P(CompressedDiskFaults, AWriteTornAtAnySectorIsFoundOut) {
  std::uint64_t cut = 0;
  bool tearing = false;
  Faulty faulty(
      kCompressedPage, 1,
      [&](const Io& io) {
        if (!tearing || io.kind == Io::Kind::read || io.offset + io.bytes <= cut) return Fate{};
        return Fate{.moves_bytes = std::uint32_t(cut > io.offset ? cut - io.offset : 0), .torn = true};
      },
      GetParam());
  DiskFixture& disk = faulty.fixture;
  const SlotId slot = disk.slot();
  std::mt19937_64 random(test::printed_seed());
  fill_half(disk.memory(0), kCompressedPage, random);
  std::uint64_t version = 1;
  ASSERT_EQ(disk.move(Direction::store, slot, 0, version).outcome, Outcome::done);
  tearing = true;
  std::uint64_t last = 0;
  for (cut = 0; cut < kHeaderBytes + kCompressedPage; cut += ScriptedDisk::kSector) {
    fill_half(disk.memory(0), kCompressedPage, random);
    const std::uint64_t before = stored_bytes(disk);
    ASSERT_EQ(disk.move(Direction::store, slot, 0, ++version).outcome, Outcome::done) << "the disk said so";
    last = kHeaderBytes + stored_bytes(disk) - before;
    const Completion loaded = disk.move(Direction::load, slot, 1, version);
    ASSERT_EQ(loaded.outcome, cut < last ? Outcome::lost : Outcome::done) << "cut " << cut << " of " << last;
    if (cut >= last + kHeaderBytes) break;
  }
  EXPECT_LT(last, kHeaderBytes + kCompressedPage * 3 / 4) << "it was compressed";
}

TEST_P(CompressedDiskFaults, NoFlippedBitGivesOtherBytes) {
  Faulty faulty(kSmallPage, 4, [](const Io&) { return Fate{}; }, GetParam());
  DiskFixture& disk = faulty.fixture;
  std::mt19937_64 random(test::printed_seed());
  const SlotId slot = disk.slot();
  fill_half(disk.memory(0), kSmallPage, random);
  ASSERT_EQ(disk.move(Direction::store, slot, 0, 1).outcome, Outcome::done);
  const std::uint64_t stored = stored_bytes(disk);
  ASSERT_NE(stored, 0u);
  int found_out = 0;
  for (int i = 0; i < kFlips; ++i) {
    const std::uint64_t bit = random() % ((stored + sizeof(SlotHeader)) * 8);
    const std::uint64_t byte = bit / 8 < sizeof(SlotHeader) ? bit / 8 : kHeaderBytes + bit / 8 - sizeof(SlotHeader);
    faulty.disk->flip(0, byte * 8 + bit % 8);
    disk.fill(1, 0xee);
    const Completion loaded = disk.move(Direction::load, slot, 1, 1);
    if (loaded.outcome == Outcome::lost) {
      ++found_out;
    } else {
      ASSERT_EQ(loaded.outcome, Outcome::done) << loaded.error.message;
      ASSERT_EQ(std::memcmp(disk.memory(0), disk.memory(1), kSmallPage), 0) << "bit " << bit % 8 << " of " << byte;
    }
    faulty.disk->flip(0, byte * 8 + bit % 8);
  }
  EXPECT_GT(found_out, kFlips * 9 / 10);
  EXPECT_EQ(disk.move(Direction::load, slot, 1, 1).outcome, Outcome::done);
}

// Stores and loads at random against a model, on a disk that fails one request in 32 and ends one
// in 16 short. Compressible and incompressible pages alternate in the slots.
TEST_P(CompressedDiskFaults, AnUnreliableDiskGivesTheRightBytesOrSaysSo) {
  std::mt19937_64 fates(test::printed_seed());
  Unreliable unreliable;
  Faulty faulty(kSmallPage, 8, [&](const Io& io) { return unreliable(io, fates); }, GetParam());
  DiskFixture& disk = faulty.fixture;
  std::mt19937_64 random(test::printed_seed());
  struct Model {
    SlotId slot = 0;
    std::uint64_t version = 0, seed = 0;
    bool noise = false;
  };
  const auto fill = [&](const Model& page, std::size_t memory) {
    std::mt19937_64 bytes(page.seed);
    page.noise ? fill_randomly(disk.memory(memory), kSmallPage, bytes)
               : fill_half(disk.memory(memory), kSmallPage, bytes);
  };
  std::vector<Model> model(8);
  for (Model& each : model) each.slot = disk.slot();
  int failures = 0;
  for (int i = 0; i < 4'000; ++i) {
    Model& page = model[random() % model.size()];
    const auto granule = std::uint32_t(&page - model.data());
    if (random() % 2 == 0) {
      page.seed = random();
      page.noise = random() % 2 == 0;
      fill(page, 0);
      const bool stored =
          disk.move(Direction::store, page.slot, 0, std::uint64_t(i) + 1, granule).outcome == Outcome::done;
      failures += !stored;
      page.version = stored ? std::uint64_t(i) + 1 : 0;
    } else if (page.version != 0) {
      const Completion loaded = disk.move(Direction::load, page.slot, 1, page.version, granule);
      failures += loaded.outcome != Outcome::done;
      ASSERT_NE(loaded.outcome, Outcome::lost) << "the bytes are all there: " << loaded.error.message;
      fill(page, 0);
      if (loaded.outcome == Outcome::done) {
        ASSERT_EQ(std::memcmp(disk.memory(0), disk.memory(1), kSmallPage), 0);
      }
    }
  }
  EXPECT_LT(failures, 60) << "most are mended by another try";
  const CompressionCounters counters = disk.tier().compression();
  EXPECT_GT(counters.pages[0], 0u) << "noise";
  EXPECT_EQ(counters.pages[0], counters.refused_pages);
}

TEST_P(CompressedDiskFaults, AFullDiskFailsTheStoreAndNothingElse) {
  bool full = false;
  Faulty faulty(
      kSmallPage, 4, [&](const Io& io) { return full && io.kind == Io::Kind::write ? Fate{.error = ENOSPC} : Fate{}; },
      GetParam());
  DiskFixture& disk = faulty.fixture;
  const SlotId kept = disk.slot(), refused = disk.slot();
  disk.fill(0, 1);
  ASSERT_EQ(disk.move(Direction::store, kept, 0, 1).outcome, Outcome::done);
  full = true;
  const Completion stored = disk.move(Direction::store, refused, 0, 1, 5);
  EXPECT_EQ(stored.outcome, Outcome::failed);
  EXPECT_EQ(stored.error.status, VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(disk.move(Direction::load, kept, 1, 1).outcome, Outcome::done);
  EXPECT_TRUE(disk.holds(1, 1));
}

INSTANTIATE_TEST_SUITE_P(Codecs, CompressedDiskFaults, testing::Values("lz4", "zstd-1", "shuffle2+zstd-huffman"),
                         [](const auto& codec) {
                           std::string name = codec.param;
                           std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
                           return name;
                         });

TEST(DiskFaults, ABitFlippedOnTheWayIsReadAgain) {
  int reads = 0;
  Faulty* self = nullptr;
  Faulty faulty(kSmallPage, 2, [&](const Io& io) {
    if (io.kind == Io::Kind::write) return Fate{};
    // Damages the page during the first try and repairs it for the second.
    if (++reads <= 2) self->disk->flip(0, (kHeaderBytes + 100) * 8);
    return Fate{};
  });
  self = &faulty;
  DiskFixture& disk = faulty.fixture;
  const SlotId slot = disk.slot();
  disk.fill(0, 3);
  ASSERT_EQ(disk.move(Direction::store, slot, 0, 1).outcome, Outcome::done);
  EXPECT_EQ(disk.move(Direction::load, slot, 1, 1).outcome, Outcome::done);
  EXPECT_TRUE(disk.holds(1, 3));
  EXPECT_EQ(reads, 2) << "header and page together, twice";
}

// Stores and loads at random against a model; `failures` counts failed transfers.
void move_at_random(DiskFixture& disk, std::mt19937_64& random, int moves, int& failures) {
  struct Model {
    SlotId slot = 0;
    std::uint64_t version = 0;  // 0: nothing stored, or unknown
    unsigned char value = 0;
  };
  std::vector<Model> model(16);
  for (Model& each : model) each.slot = disk.slot();
  for (int i = 0; i < moves; ++i) {
    Model& page = model[random() % model.size()];
    const auto granule = std::uint32_t(&page - model.data());
    if (random() % 2 == 0) {
      const std::uint64_t version = std::uint64_t(i) + 1;
      const auto value = static_cast<unsigned char>(random());
      disk.fill(0, value);
      const Completion stored = disk.move(Direction::store, page.slot, 0, version, granule);
      failures += stored.outcome != Outcome::done;
      page.version = stored.outcome == Outcome::done ? version : 0;
      page.value = value;
    } else if (page.version != 0) {
      const Completion loaded = disk.move(Direction::load, page.slot, 1, page.version, granule);
      failures += loaded.outcome != Outcome::done;
      if (loaded.outcome == Outcome::done) {
        ASSERT_TRUE(disk.holds(1, page.value));
      }
      ASSERT_NE(loaded.outcome, Outcome::lost) << "the bytes are all there: " << loaded.error.message;
    }
  }
}

TEST(DiskFaults, AnUnreliableDiskGivesTheRightBytesOrSaysSo) {
  std::mt19937_64 fates(test::printed_seed());
  Unreliable unreliable;
  Faulty faulty(kSmallPage, 16, [&](const Io& io) { return unreliable(io, fates); });
  std::mt19937_64 random(fates());
  int failures = 0;
  move_at_random(faulty.fixture, random, 20'000, failures);
  EXPECT_LT(failures, 200) << "most are mended by another try";
}

// The same on a real disk, for each way to use io_uring.
struct UringWay {
  const char* name;
  DiskTier::MakeQueue make;
};
class UringFaults : public testing::TestWithParam<UringWay> {};

TEST_P(UringFaults, AnUnreliableDiskGivesTheRightBytesOrSaysSo) {
  std::mt19937_64 fates(test::printed_seed());
  Unreliable unreliable;
  std::mt19937_64 random(fates());
  DiskFixture disk(kSmallPage, 16 * kSmallPage, [&](const std::vector<int>& files) -> Result<std::unique_ptr<IoQueue>> {
    VMEM_ASSIGN(auto inner, GetParam().make(files));
    return std::make_unique<FaultyQueue>(std::move(inner), [&](const Io& io) { return unreliable(io, fates); });
  });
  int failures = 0;
  move_at_random(disk, random, 1'000, failures);
  EXPECT_LT(failures, 30) << "most are mended by another try";
}

INSTANTIATE_TEST_SUITE_P(Ways, UringFaults,
                         testing::Values(UringWay{"Registered", uring()},
                                         UringWay{"Unregistered", unregistered_uring()},
                                         UringWay{"Polled", uring(32, true)}),
                         [](const auto& way) { return std::string(way.param.name); });

TEST(DiskFaults, AFullDiskFailsTheStoreAndNothingElse) {
  bool full = false;
  Faulty faulty(kSmallPage, 4,
                [&](const Io& io) { return full && io.kind == Io::Kind::write ? Fate{.error = ENOSPC} : Fate{}; });
  DiskFixture& disk = faulty.fixture;
  const SlotId kept = disk.slot(), refused = disk.slot();
  disk.fill(0, 1);
  ASSERT_EQ(disk.move(Direction::store, kept, 0, 1).outcome, Outcome::done);
  full = true;
  const Completion stored = disk.move(Direction::store, refused, 0, 1, 5);
  EXPECT_EQ(stored.outcome, Outcome::failed);
  EXPECT_EQ(stored.error.status, VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(disk.move(Direction::load, kept, 1, 1).outcome, Outcome::done);
  EXPECT_TRUE(disk.holds(1, 1));
  full = false;
  EXPECT_EQ(disk.move(Direction::store, refused, 0, 1, 5).outcome, Outcome::done);
}

// Two directories, of which the second fails.
TEST(DiskFaults, ADirectoryThatFailsAWriteIsOutOfServiceAndTheOtherOneGoesOn) {
  for (const int error : {EIO,       EROFS,        EUCLEAN,      EBADMSG,    ENODEV,   ENXIO,      ESHUTDOWN, ESTALE,
                          EHOSTDOWN, EHOSTUNREACH, EREMOTEIO,    ENOLINK,    EBADE,    EILSEQ,     ETIME,     ETIMEDOUT,
                          EPIPE,     ECONNABORTED, ECONNREFUSED, ECONNRESET, ENOTCONN, ENETUNREACH}) {
    SCOPED_TRACE(std::strerror(error));
    bool dead = false;
    int refused_writes = 0;
    Faulty faulty(
        kSmallPage, 16,
        [&](const Io& io) {
          if (!dead || io.file == 0 || io.kind == Io::Kind::read) return Fate{};
          ++refused_writes;
          return Fate{.error = error};
        },
        "off", 2);
    DiskFixture& disk = faulty.fixture;
    std::vector<SlotId> slots;
    for (std::uint32_t i = 0; i < 8; ++i) {
      slots.push_back(disk.slot());
      disk.wait_until_a_slot_is_free();  // in the other directory: it is the next one's
      disk.fill(0, static_cast<unsigned char>(i));
      ASSERT_EQ(disk.move(Direction::store, slots[i], 0, 1, i).outcome, Outcome::done);
    }
    dead = true;
    std::vector<std::uint32_t> stored, failed;
    for (std::uint32_t i = 0; i < 8; ++i) {
      const Completion completion = disk.move(Direction::store, slots[i], 0, 2, i);
      (completion.outcome == Outcome::done ? stored : failed).push_back(i);
      if (completion.outcome == Outcome::done) continue;
      EXPECT_EQ(completion.error.native, error);
      expect_says(completion.error, "of the file in " + kTestDirectory);
    }
    EXPECT_FALSE(stored.empty());
    ASSERT_GE(failed.size(), 2u);
    EXPECT_EQ(refused_writes, 3) << "three tries of the first page, and no more writes";
    for (std::size_t i = 1; i < failed.size(); ++i) {
      EXPECT_EQ(disk.move(Direction::load, slots[failed[i]], 1, 1, failed[i]).outcome, Outcome::done)
          << "what was written before can be read";
      EXPECT_TRUE(disk.holds(1, static_cast<unsigned char>(failed[i])));
    }
    EXPECT_EQ(disk.tier().usage().budget_bytes, 8 * kSmallPage) << "of the directory that is left";
    for (const std::uint32_t i : failed) disk.tier().release(slots[i]);
    for (std::size_t i = stored.size(); i < 8; ++i)
      ASSERT_EQ(disk.move(Direction::store, disk.slot(), 0, 3, 9).outcome, Outcome::done);
    EXPECT_EQ(disk.tier().allocate(kSmallPage)->grant, Grant::full);
    EXPECT_EQ(refused_writes, 3);
  }
}

TEST(DiskFaults, ATierWithoutADirectoryInServiceRefusesSlotsWithTheReason) {
  bool dead = false;
  Faulty faulty(kSmallPage, 4,
                [&](const Io& io) { return dead && io.kind == Io::Kind::write ? Fate{.error = EIO} : Fate{}; });
  DiskFixture& disk = faulty.fixture;
  const SlotId slot = disk.slot();
  dead = true;
  EXPECT_EQ(disk.move(Direction::store, slot, 0, 1).outcome, Outcome::failed);
  const auto refused = disk.tier().allocate(kSmallPage);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().native, EIO);
  expect_says(refused.error(), "of the file in " + kTestDirectory);
  EXPECT_EQ(disk.tier().usage().budget_bytes, 0u);
  EXPECT_EQ(disk.tier().usage().ready_bytes, 0u);
  disk.tier().release(slot);
}

TEST(DiskFaults, AFileThatBecameShorterLosesItsPagesAndSaysWhere) {
  bool cut_off = false;
  Faulty faulty(kSmallPage, 4,
                [&](const Io& io) { return cut_off && io.kind == Io::Kind::read ? Fate{.moves_bytes = 0} : Fate{}; });
  DiskFixture& disk = faulty.fixture;
  const SlotId slot = disk.slot();
  ASSERT_EQ(disk.move(Direction::store, slot, 0, 1).outcome, Outcome::done);
  cut_off = true;
  const Completion loaded = disk.move(Direction::load, slot, 1, 1);
  EXPECT_EQ(loaded.outcome, Outcome::failed);
  expect_says(loaded.error, kTestDirectory);
}

}  // namespace
}  // namespace vmem::tiers
