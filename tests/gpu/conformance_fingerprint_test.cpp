// The fingerprint kernels, on the GPU and as host twins, against the same sum computed here.
#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <numeric>
#include <utility>
#include <vector>

#include "gpu/driver_fixture.hpp"
#include "gpu/fingerprinter.hpp"

namespace vmem::gpu {
namespace {

class Fingerprints : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    if (!Fingerprinter::available(*driver)) GTEST_SKIP() << "built without nvcc";
    fingerprinter = must(Fingerprinter::create(driver));
    bytes = 3 * granularity;  // no power of two
    frame = must(DeviceMemory::create(driver, bytes));
    slot = must(PinnedBuffer::create(driver, bytes));
    source = must(PinnedBuffer::create(driver, bytes));
    records = must(PinnedBuffer::create(driver, 2 * sizeof(SlotRecord)));
    std::memset(records.data(), 0, records.bytes());
    for (std::size_t i = 0; i < bytes; ++i) source.data()[i] = std::byte(i * 31 + i / 509);
    upload();
  }
  void TearDown() override {
    // These objects must end before the context.
    fingerprinter.reset();
    frame.reset();
    for (PinnedBuffer* buffer : {&slot, &source, &records}) buffer->reset();
    DriverTest::TearDown();
  }
  std::uint64_t* words() const { return reinterpret_cast<std::uint64_t*>(source.data()); }
  SlotRecord& record(std::size_t i = 0) const { return reinterpret_cast<SlotRecord*>(records.data())[i]; }
  void upload() const {
    ASSERT_CU(cu().cuMemcpyHtoDAsync(frame.get(), source.data(), bytes, fingerprinter->stream()));
    ASSERT_CU(cu().cuStreamSynchronize(fingerprinter->stream()));  // `source` may be edited now
  }
  Fingerprint expected() const {
    Fingerprint sum;
    for (std::size_t i = 0; i < bytes / 8; ++i) add_word(sum, std::uint32_t(i), words()[i]);
    return sum;
  }
  void store() const {
    ASSERT_TRUE(fingerprinter->store_changed(frame.get(), CUdeviceptr(slot.data()), bytes, &record()));
    ASSERT_CU(cu().cuStreamSynchronize(fingerprinter->stream()));
  }

  std::unique_ptr<Fingerprinter> fingerprinter;
  std::size_t bytes = 0;
  DeviceMemory frame;
  PinnedBuffer slot, source, records;
};

TEST_F(Fingerprints, AFrameHasTheSumOfItsWords) {
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(fingerprinter->record(frame.get(), bytes, &record(1)));
    ASSERT_CU(cu().cuStreamSynchronize(fingerprinter->stream()));
    EXPECT_TRUE(same(record(1).last, expected())) << round;
    EXPECT_EQ(record(1).changes, 0u);
    words()[std::size_t(round) * 1000] ^= 1;
    upload();
  }
}

TEST_F(Fingerprints, WhatDidNotChangeIsNotStored) {
  std::memset(slot.data(), 0x77, bytes);
  ASSERT_TRUE(fingerprinter->record(frame.get(), bytes, &record()));
  store();
  EXPECT_EQ(record().changes, 0u);
  EXPECT_EQ(slot.data()[0], std::byte{0x77});
  EXPECT_EQ(slot.data()[bytes - 1], std::byte{0x77});
}

// Of a frame whose pieces are known only those that changed are stored.
TEST_F(Fingerprints, PiecesThatDidNotChangeAreNotStored) {
  const std::size_t piece = words_of_piece(bytes / 8), count = pieces_of(bytes / 8);
  PinnedBuffer sums = must(PinnedBuffer::create(driver, count * sizeof(Fingerprint)));
  auto* const pieces = reinterpret_cast<Fingerprint*>(sums.data());
  ASSERT_TRUE(fingerprinter->record(frame.get(), bytes, &record(), pieces));
  ASSERT_CU(cu().cuStreamSynchronize(fingerprinter->stream()));
  Fingerprint total;
  for (std::size_t i = 0; i < count; ++i) {
    total.first += pieces[i].first;
    total.second += pieces[i].second;
  }
  EXPECT_TRUE(same(total, expected()));
  std::uint64_t changed_words = 0;
  const auto expect_stored = [&](const std::vector<std::size_t>& changed) {
    for (const std::size_t each : changed) words()[each * piece + each % piece] ^= 1;
    upload();
    std::memset(slot.data(), 0x77, bytes);
    ASSERT_TRUE(fingerprinter->store_changed(frame.get(), CUdeviceptr(slot.data()), bytes, &record(), pieces));
    ASSERT_CU(cu().cuStreamSynchronize(fingerprinter->stream()));
    changed_words += changed.size() * piece;
    EXPECT_EQ(record().changed_words, changed_words);
    EXPECT_TRUE(same(record().last, expected()));
    for (std::size_t i = 0; i < count; ++i) {
      const bool stored = std::memcmp(slot.data() + i * piece * 8, source.data() + i * piece * 8, piece * 8) == 0;
      const std::byte* const at = slot.data() + i * piece * 8;
      const bool left = std::all_of(at, at + piece * 8, [](std::byte each) { return each == std::byte{0x77}; });
      EXPECT_TRUE(std::ranges::find(changed, i) != changed.end() ? stored : left) << "piece " << i;
    }
  };
  expect_stored({0});
  expect_stored({count - 1});
  expect_stored({});
  expect_stored({1, 2, count / 2});
  std::vector<std::size_t> all(count);
  std::iota(all.begin(), all.end(), 0);
  expect_stored(all);
}

TEST_F(Fingerprints, TheLastPieceMayBeShort) {
  bytes -= (std::size_t{48} << 10) - 16;
  const std::size_t piece = words_of_piece(bytes / 8) * 8, count = pieces_of(bytes / 8), begin = (count - 1) * piece;
  PinnedBuffer sums = must(PinnedBuffer::create(driver, count * sizeof(Fingerprint)));
  auto* const pieces = reinterpret_cast<Fingerprint*>(sums.data());
  ASSERT_TRUE(fingerprinter->record(frame.get(), bytes, &record(), pieces));
  ASSERT_CU(cu().cuStreamSynchronize(fingerprinter->stream()));
  EXPECT_TRUE(same(record().last, expected()));
  words()[bytes / 8 - 1] ^= 1;
  upload();
  std::memset(slot.data(), 0x77, slot.bytes());
  ASSERT_TRUE(fingerprinter->store_changed(frame.get(), CUdeviceptr(slot.data()), bytes, &record(), pieces));
  ASSERT_CU(cu().cuStreamSynchronize(fingerprinter->stream()));
  EXPECT_EQ(record().changed_words, (bytes - begin) / 8);
  EXPECT_EQ(std::memcmp(slot.data() + begin, source.data() + begin, bytes - begin), 0);
  EXPECT_EQ(slot.data()[begin - 1], std::byte{0x77});
  EXPECT_EQ(slot.data()[bytes], std::byte{0x77}) << "behind the frame";
}

TEST(FingerprintPieces, CoverFramesOfEverySize) {
  for (std::uint64_t bytes = 16; bytes <= std::uint64_t{4} << 30; bytes = bytes < 4096 ? bytes + 16 : bytes * 2 + 16) {
    const std::uint64_t words = bytes / 8, piece = words_of_piece(words);
    ASSERT_LE(pieces_of(words), kPiecesMax) << bytes;
    ASSERT_GE(pieces_of(words) * piece, words) << bytes;
    ASSERT_LT((pieces_of(words) - 1) * piece, words) << bytes;
    ASSERT_EQ(piece % 2, 0u) << bytes;
  }
  EXPECT_EQ(words_of_piece((std::uint64_t{32} << 20) / 8) * 8, 64u << 10);
  EXPECT_EQ(pieces_of(0), 0u);
}

// Changes single bits and bytes where partial sums meet, and swaps words.
TEST_F(Fingerprints, WhatChangedIsStoredAndCountedOnce) {
  ASSERT_TRUE(fingerprinter->record(frame.get(), bytes, &record()));
  const std::size_t last = bytes / 8 - 1;
  std::uint32_t changes = 0;
  const auto change = [&](auto&& edit) {
    edit();
    upload();
    store();
    EXPECT_EQ(record().changes, ++changes);
    EXPECT_TRUE(same(record().last, expected()));
    EXPECT_EQ(std::memcmp(slot.data(), source.data(), bytes), 0);
    store();
    EXPECT_EQ(record().changes, changes) << "known by now";
  };
  for (const std::size_t at : {std::size_t{0}, std::size_t{1}, std::size_t{1023}, last / 2, last}) {
    for (const unsigned bit : {0u, 31u, 32u, 63u}) change([&] { words()[at] ^= std::uint64_t{1} << bit; });
  }
  change([&] { std::swap(words()[5], words()[6]); });
  change([&] { std::swap(words()[7], words()[last]); });
  change([&] { std::memset(source.data(), 0, bytes); });
  // Patterns of permuting and in-place sorting of small integers and floating-point numbers.
  for (const auto& [low, high] :
       {std::pair<std::uint64_t, std::uint64_t>{0, 1}, {3, 7}, {0x3ff0000000000000, 0x4000000000000000}}) {
    const auto set = [&](std::size_t at, std::initializer_list<std::uint64_t> values) {
      for (const std::uint64_t value : values) words()[at++] = value;
    };
    for (const std::size_t at : {std::size_t{0}, std::size_t{4096}, last - 3}) {
      change([&] { set(at, {low, high, high, low}); });
      change([&] { set(at, {high, low, low, high}); });
    }
    change([&] { set(100, {low, high}), set(9000, {high, low}); });
    change([&] { set(100, {high, low}), set(9000, {low, high}); });
    change([&] { set(0, {high}), set(1025, {low}), set(2050, {high}); });
    change([&] { set(0, {low}), set(1025, {high}), set(2050, {low}); });
  }
}

}  // namespace
}  // namespace vmem::gpu
