#include "trace/program.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace vmem::trace {
namespace {

using Contents = Program::Contents;
using ::testing::ElementsAre;

constexpr std::uint64_t kMiB = 1 << 20;

class Extracted : public ::testing::Test {
 protected:
  void add(std::uint64_t at_ns, const Body& body) { trace.events.push_back({at_ns, body}); }
  void begins(std::uint64_t at_ns, Block block, std::uint64_t mib, BlockKind kind = BlockKind::undeclared,
              std::uint32_t device = 0) {
    add(at_ns, BlockBegins{block, mib * kMiB, block * 100, std::uint32_t((mib + 1) / 2), device, kind});
  }
  void launches(std::uint64_t at_ns, std::vector<Named> named, std::uint64_t epoch = 1, std::uint32_t device = 0) {
    add(at_ns, Launch{0, 1, device, epoch, 0, 0, std::move(named)});
  }
  // The items of each launch.
  static std::vector<std::vector<std::uint32_t>> items(const Program& program) {
    std::vector<std::vector<std::uint32_t>> all;
    for (const auto& launch : program.launches) {
      all.emplace_back();
      for (std::uint32_t i = 0; i < launch.uses; ++i) all.back().push_back(program.uses[launch.first_use + i].item);
    }
    return all;
  }
  Trace trace;
};

TEST_F(Extracted, ABlockIsAnItemFromItsFirstUseToItsLast) {
  begins(1, 1, 8);
  begins(1, 2, 6);
  launches(10, {{1}});
  launches(20, {{1}, {2}, {1}});
  add(25, BlockEnds{1});
  begins(26, 3, 8);
  launches(30, {{3}});
  const Program program = extract(trace, {});
  EXPECT_THAT(items(program), ElementsAre(ElementsAre(0), ElementsAre(0, 1), ElementsAre(2)));
  EXPECT_EQ(program.items[0].bytes, 8 * kMiB);
  EXPECT_EQ(program.items[0].first, 0u);
  EXPECT_EQ(program.items[0].last, 1u);
  EXPECT_EQ(program.items[0].contents, Contents::made);
  EXPECT_EQ(program.largest_launch_bytes(), 14 * kMiB);
}

TEST_F(Extracted, ABlockThatIsUsedInPartIsAnItemForEachGranule) {
  begins(1, 1, 5);
  launches(10, {{1, Named::kPart, 0, 1}});
  launches(20, {{1, Named::kPart, 1, 5}});  // reaches beyond the block
  launches(30, {{1}});
  const Program program = extract(trace, {});
  EXPECT_THAT(items(program), ElementsAre(ElementsAre(0), ElementsAre(1, 2), ElementsAre(0, 1, 2)));
  EXPECT_EQ(program.items[2].bytes, kMiB) << "the rest of the block";
}

TEST_F(Extracted, TheFirstUseSaysWhereContentsComeFrom) {
  begins(1, 1, 2, BlockKind::file);
  begins(1, 2, 2, BlockKind::declared);
  begins(1, 3, 2, BlockKind::declared);
  begins(1, 4, 2, BlockKind::declared);
  launches(10, {{1}, {2}, {3, Named::kWrites}, {4, Named::kWrites | Named::kDiscards}});
  const Program program = extract(trace, {});
  std::vector<Contents> contents;
  for (const auto& item : program.items) contents.push_back(item.contents);
  EXPECT_THAT(contents, ElementsAre(Contents::before, Contents::before, Contents::unknown, Contents::made));
}

TEST_F(Extracted, ADiscardBeginsAnotherItem) {
  begins(1, 1, 2);
  launches(10, {{1}});
  launches(20, {{1, Named::kWrites | Named::kDiscards}});
  launches(30, {{1}});
  const Program program = extract(trace, {});
  EXPECT_THAT(items(program), ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(1)));
  EXPECT_EQ(program.items[0].last, 0u) << "nobody needs its contents afterwards";
}

TEST_F(Extracted, OtherDevicesSlabsAndPossibleUsesAreLeftOut) {
  begins(1, 1, 2, BlockKind::undeclared, 1);
  begins(1, 2, 2, BlockKind::slab);
  begins(1, 3, 2);
  launches(10, {{1}, {2}, {3, Named::kPossible}});
  launches(20, {{1}, {3}}, 1, 1);
  launches(30, {{3}});
  EXPECT_THAT(items(extract(trace, {})), ElementsAre(ElementsAre(), ElementsAre(0)));
  EXPECT_EQ(extract(trace, {}).items.at(0).contents, Contents::unknown) << "the others may have made it";
  EXPECT_THAT(items(extract(trace, {.device = 1})), ElementsAre(ElementsAre(0)));
}

TEST_F(Extracted, OfAPartItKnowsWhatWasThereBefore) {
  begins(1, 1, 2);
  begins(1, 2, 2);
  launches(10, {{1}});
  launches(20, {{1}, {2}});
  launches(30, {{1}});
  const Program program = extract(trace, {.from_ns = 15, .until_ns = 25});
  ASSERT_EQ(program.launches.size(), 1u);
  EXPECT_EQ(program.items[0].contents, Contents::before);
  EXPECT_EQ(program.items[1].contents, Contents::made);
}

TEST_F(Extracted, AnEpochsTimeIsItsLaunchesWithoutThePauseBefore) {
  begins(1, 1, 2);
  launches(1'000, {{1}}, 1);
  launches(2'000, {{1}}, 1);
  add(9'000, EpochEnds{1, 1, 600});
  launches(1'000'000, {{1}}, 2);
  add(1'000'400, EpochEnds{1, 2, 991'000});
  launches(1'100'000, {{1}}, 3);
  add(9'000'000, EpochEnds{1, 3, 8'000'000});  // ended by the program's end
  const Program program = extract(trace, {});
  ASSERT_EQ(program.epochs.size(), 2u);
  EXPECT_EQ(program.epochs[0].gpu_ns, 600u);
  EXPECT_EQ(program.launches[0].gpu_ns, 300u);
  EXPECT_EQ(program.epochs[1].gpu_ns, 400u);
  EXPECT_EQ(program.launches.at(3).gpu_ns, 0u) << "the last epoch's time is unknown";
  // Of an epoch that begins before the part, only a share of the time is known.
  const Program part = extract(trace, {.from_ns = 1'500, .until_ns = 5'000});
  EXPECT_TRUE(part.epochs.empty());
  EXPECT_EQ(part.launches.at(0).gpu_ns, 300u);
}

// Two streams at once: the time of the longer one counts, not their sum.
TEST_F(Extracted, OnlyTheBusiestStreamTakesTime) {
  begins(1, 1, 2);
  for (std::uint64_t epoch = 1; epoch <= 3; ++epoch) {
    for (std::uint32_t stream : {1, 2}) {
      add(epoch * 10'000, Launch{0, stream, 0, epoch, 0, 0, {{1}}});
      add(epoch * 10'000 + 9'000, EpochEnds{stream, epoch, stream * 100});
    }
  }
  const Program program = extract(trace, {});
  ASSERT_EQ(program.epochs.size(), 2u) << "two of stream 2; the last one has no known time";
  EXPECT_EQ(program.epochs[0].gpu_ns, 200u);
  std::uint64_t sum = 0;
  for (const auto& launch : program.launches) sum += launch.gpu_ns;
  EXPECT_EQ(sum, 400u);
}

}  // namespace
}  // namespace vmem::trace
