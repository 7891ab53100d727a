// An address space that a process shares with other nodes of its cluster.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <array>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "campaign/seeds.hpp"
#include "pagetable/address_space.hpp"

namespace vmem::pagetable {
namespace {

using ::testing::HasSubstr;

constexpr std::uintptr_t kBase = 0x7d0000000000;
constexpr Serial kOther{7};

std::unique_ptr<AddressSpace> joint_space(std::uint32_t granules) {
  auto space = AddressSpace::create(kBase, granules * kGranuleBytes, AddressSpace::Own::nothing);
  EXPECT_TRUE(space.has_value());
  return std::move(*space);
}

template <class T>
Error error_of(const Result<T>& result) {
  return result ? Error{.status = VMEM_OK, .native = 0, .message = "it was done"} : result.error();
}

TEST(JointSpace, ANodeAllocatesOnlyInWhatWasGranted) {
  auto space = joint_space(64);
  EXPECT_EQ(error_of(space->add(1, 0)).status, VMEM_ERROR_ADDRESS_SPACE);
  ASSERT_TRUE(space->grant(16, 8));
  for (std::uint32_t i = 0; i < 4; ++i) {
    Region* const region = *space->add(2, 1);
    EXPECT_GE(region->first.index, 16u);
    EXPECT_LE(region->end_granule(), 24u);
    EXPECT_TRUE(space->owns(*region));
  }
  const Error error = error_of(space->add(2, 1));
  EXPECT_EQ(error.status, VMEM_ERROR_ADDRESS_SPACE);
  EXPECT_THAT(error.message, HasSubstr("no run of 4 MiB left in the 0 GiB of the joint address space that this node "
                                       "allocates in: 0 MiB are free"));
  EXPECT_THAT(error.message, HasSubstr("take more slices"));
}

TEST(JointSpace, ARegionMayCrossPartsThatTouch) {
  auto space = joint_space(64);
  ASSERT_TRUE(space->grant(32, 16));
  ASSERT_TRUE(space->grant(0, 16));
  EXPECT_FALSE(space->add(17, 0));
  ASSERT_TRUE(space->grant(16, 16));
  EXPECT_EQ(space->largest_free_bytes(), 48 * kGranuleBytes);
  Region* const region = *space->add(48, 4);
  EXPECT_EQ(region->first.index, 0u);
  EXPECT_EQ(error_of(space->withdraw(16, 16)).status, VMEM_ERROR_IN_USE);
  space->remove(*region);
  EXPECT_TRUE(space->withdraw(16, 16)) << "parts are withdrawn as the node likes, not as they were granted";
  EXPECT_EQ(space->free_bytes(), 32 * kGranuleBytes);
  EXPECT_EQ(space->largest_free_bytes(), 16 * kGranuleBytes);
}

TEST(JointSpace, AnotherNodesRegionIsFoundAtItsAddressWithItsSerial) {
  auto space = joint_space(64);
  ASSERT_TRUE(space->grant(0, 16));
  Region* const region = *space->add_at(24, 8, 2, kOther);
  for (std::uint32_t i = 24; i < 32; ++i) EXPECT_EQ(space->region_at(i), region);
  EXPECT_EQ(space->region_at(23), nullptr);
  EXPECT_EQ(space->region_at(32), nullptr);
  EXPECT_EQ(region->page_count, 2u);
  EXPECT_EQ(region->page_key(1), (PageKey{kOther, 28}));
  EXPECT_EQ(region->state, RegionState::empty);
  EXPECT_EQ(region->unreadable, 2u);
  EXPECT_FALSE(region->shares());
  EXPECT_FALSE(space->owns(*region));
  EXPECT_EQ(space->find(region->id), region);
}

TEST(JointSpace, ARemovedRegionOfAnotherNodeLeavesNothingBehind) {
  auto space = joint_space(64);
  ASSERT_TRUE(space->grant(0, 16));
  Region* const region = *space->add_at(16, 8, 0, kOther);
  space->remove(*region);
  EXPECT_EQ(space->region_at(16), nullptr);
  EXPECT_EQ(space->free_bytes(), 16 * kGranuleBytes) << "its granules are nobody's here";
  EXPECT_TRUE(space->add_at(20, 8, 0, kOther)) << "it may be opened again";
  EXPECT_EQ(error_of(space->add(17, 0)).status, VMEM_ERROR_ADDRESS_SPACE);
}

// The records of an earlier region with the same id, whose pages were shared, do not show.
TEST(JointSpace, AnotherNodesRegionTakesNothingOverFromAnEarlierOne) {
  auto space = joint_space(64);
  ASSERT_TRUE(space->grant(0, 16));
  Region* const shared = *space->add(16, 0);
  space->sharing().begin_region(*shared);
  space->sharing().begin_block(*shared, Span({0}, 4, Access::write));
  space->remove(*shared);
  ASSERT_TRUE(space->withdraw(0, 16));
  Region* const region = *space->add_at(0, 16, 1, kOther);
  EXPECT_EQ(region, shared) << "another object shows nothing";
  EXPECT_FALSE(region->shares());
  EXPECT_TRUE(region->extent.deaths_told.empty());
  EXPECT_EQ(region->page_count, 8u);
}

TEST(JointSpace, ARegionOutsideTheSpaceOrOffItsPagesIsRefused) {
  auto space = joint_space(64);
  const auto refused = [&](std::uint32_t first, std::uint32_t granules, std::uint32_t shift) {
    return error_of(space->add_at(first, granules, shift, kOther));
  };
  EXPECT_EQ(refused(60, 8, 0).status, VMEM_ERROR_ADDRESS_SPACE);
  EXPECT_THAT(refused(60, 8, 0).message, HasSubstr("8 granules from granule 60 on were to become another node's "
                                                   "region, and the address space of 128 MiB has 64: give all"));
  EXPECT_EQ(refused(UINT32_MAX, 2, 0).status, VMEM_ERROR_ADDRESS_SPACE) << "the sum does not fit 32 bits";
  EXPECT_EQ(refused(64, 1, 0).status, VMEM_ERROR_ADDRESS_SPACE);
  EXPECT_EQ(refused(6, 4, 2).status, VMEM_ERROR_ADDRESS_SPACE);
  EXPECT_THAT(refused(6, 4, 2).message, HasSubstr("pages of 8 MiB was to be added at 0x7d0000c00000"));
  for (const auto& [granules, shift] :
       std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 0}, {6, 2}, {2, 2}, {1, 31}, {1, 32}, {1, UINT32_MAX}})
    EXPECT_EQ(refused(0, granules, shift).status, VMEM_ERROR_INVALID_VALUE) << granules << " of 2^" << shift;
  EXPECT_TRUE(space->add_at(56, 8, 2, kOther)) << "the last granules are in the space";
}

TEST(JointSpace, AnOddBaseCountsInTheAlignmentOfPages) {
  auto space = *AddressSpace::create(kBase + 3 * kGranuleBytes, 64 * kGranuleBytes, AddressSpace::Own::nothing);
  EXPECT_EQ(error_of(space->add_at(4, 4, 2, kOther)).status, VMEM_ERROR_ADDRESS_SPACE);
  EXPECT_TRUE(space->add_at(5, 4, 2, kOther));
  ASSERT_TRUE(space->grant(10, 12));
  EXPECT_EQ((*space->add(8, 2))->first.index, 13u);
}

TEST(JointSpace, ASerialOfTheOwnKindOrPresentOrZeroIsRefused) {
  auto space = joint_space(64);
  const auto refused = [&](Serial serial) { return error_of(space->add_at(16, 8, 0, serial)); };
  ASSERT_TRUE(space->add_at(0, 8, 0, kOther));
  EXPECT_EQ(refused(kOther).status, VMEM_ERROR_INVALID_VALUE);
  EXPECT_THAT(refused(kOther).message, HasSubstr("serial 0x7, and a region with that serial is in the address space"));
  for (const Serial serial : {Serial{}, kFirstOwnSerial, Serial{UINT64_MAX}}) {
    EXPECT_EQ(refused(serial).status, VMEM_ERROR_INVALID_VALUE);
    EXPECT_THAT(refused(serial).message, HasSubstr("serials of the cluster are from 1 to 2^63 - 1"));
  }
  EXPECT_EQ(space->region_at(16), nullptr) << "a refused region takes nothing";
  EXPECT_TRUE(space->add_at(16, 8, 0, Serial{(std::uint64_t{1} << 63) - 1}));
}

TEST(JointSpace, GranulesThatAreInUseAreRefused) {
  auto space = joint_space(64);
  ASSERT_TRUE(space->grant(0, 16));
  ASSERT_TRUE(space->add_at(32, 8, 0, kOther));
  const auto refused = [&](std::uint32_t first, std::uint32_t granules) {
    return error_of(space->add_at(first, granules, 0, Serial{8}));
  };
  for (const std::uint32_t first : {25u, 32u, 39u}) {
    EXPECT_EQ(refused(first, 8).status, VMEM_ERROR_IN_USE) << first;
    EXPECT_THAT(refused(first, 8).message, HasSubstr("the region with serial 0x7 has 8 granules from granule 32 on"));
  }
  EXPECT_EQ(refused(15, 2).status, VMEM_ERROR_IN_USE);
  EXPECT_EQ(refused(0, 1).status, VMEM_ERROR_IN_USE) << "an own part without a region, too";
  EXPECT_THAT(refused(0, 1).message, HasSubstr("this node allocates in some of them"));
  EXPECT_TRUE(space->add_at(16, 16, 0, Serial{8})) << "between the two";
}

TEST(JointSpace, WhatCannotBeGrantedIsRefused) {
  auto space = joint_space(64);
  ASSERT_TRUE(space->grant(8, 8));
  ASSERT_TRUE(space->add_at(32, 8, 0, kOther));
  const auto refused = [&](std::uint32_t first, std::uint32_t count) { return error_of(space->grant(first, count)); };
  EXPECT_EQ(refused(57, 8).status, VMEM_ERROR_ADDRESS_SPACE);
  EXPECT_EQ(refused(UINT32_MAX, UINT32_MAX).status, VMEM_ERROR_ADDRESS_SPACE);
  EXPECT_EQ(refused(0, 0).status, VMEM_ERROR_INVALID_VALUE);
  for (const std::uint32_t first : {1u, 8u, 15u}) EXPECT_EQ(refused(first, 8).status, VMEM_ERROR_INVALID_VALUE);
  EXPECT_EQ(refused(0, 32).status, VMEM_ERROR_INVALID_VALUE) << "a part lies within";
  EXPECT_EQ(refused(24, 9).status, VMEM_ERROR_IN_USE);
  EXPECT_THAT(refused(24, 9).message, HasSubstr("9 granules from granule 24 on were to be granted, and the region "
                                                "with serial 0x7 has 8"));
  EXPECT_EQ(space->own_bytes(), 8 * kGranuleBytes);
}

TEST(JointSpace, WhatCannotBeWithdrawnIsRefused) {
  auto space = joint_space(64);
  ASSERT_TRUE(space->grant(8, 24));
  Region* const region = *space->add(4, 0);
  const auto refused = [&](std::uint32_t first, std::uint32_t count) {
    return error_of(space->withdraw(first, count));
  };
  EXPECT_EQ(refused(8, 0).status, VMEM_ERROR_INVALID_VALUE);
  EXPECT_EQ(refused(0, 16).status, VMEM_ERROR_INVALID_VALUE);
  EXPECT_EQ(refused(24, 9).status, VMEM_ERROR_INVALID_VALUE);
  EXPECT_EQ(refused(24, UINT32_MAX).status, VMEM_ERROR_INVALID_VALUE);
  EXPECT_EQ(refused(60, 1).status, VMEM_ERROR_INVALID_VALUE);
  EXPECT_EQ(refused(region->first.index + 3, 8).status, VMEM_ERROR_IN_USE);
  EXPECT_EQ(space->own_bytes(), 24 * kGranuleBytes) << "all or nothing";
  EXPECT_EQ(space->free_bytes(), 20 * kGranuleBytes);
}

TEST(JointSpace, ASpaceOfItsOwnCanGiveAPartAway) {
  auto space = *AddressSpace::create(kBase, 64 * kGranuleBytes);
  ASSERT_TRUE(space->withdraw(48, 16));
  EXPECT_TRUE(space->add_at(48, 16, 0, kOther));
  EXPECT_FALSE(space->add(49, 0));
  EXPECT_TRUE(space->add(48, 0));
}

// One granule at a time: what the space has to be.
class Model {
 public:
  enum class Kind : std::uint8_t { others, own };
  struct Granule {
    Kind kind = Kind::others;
    const Region* region = nullptr;
  };

  explicit Model(std::uint32_t granules) : granules_(granules) {}
  std::uint32_t size() const { return std::uint32_t(granules_.size()); }
  bool inside(std::uint32_t first, std::uint32_t count) const { return std::uint64_t{first} + count <= size(); }
  template <class Is>
  bool any(std::uint32_t first, std::uint32_t count, Is is) const {
    for (std::uint32_t i = first; i < first + count; ++i)
      if (is(granules_[i])) return true;
    return false;
  }
  bool any_kind(std::uint32_t first, std::uint32_t count, Kind kind) const {
    return any(first, count, [&](const Granule& each) { return each.kind == kind; });
  }
  bool any_region(std::uint32_t first, std::uint32_t count) const {
    return any(first, count, [](const Granule& each) { return each.region != nullptr; });
  }
  void become(std::uint32_t first, std::uint32_t count, Kind kind) {
    for (std::uint32_t i = first; i < first + count; ++i) granules_[i].kind = kind;
  }
  void put(std::uint32_t first, std::uint32_t count, const Region* region) {
    for (std::uint32_t i = first; i < first + count; ++i) granules_[i].region = region;
  }
  // Length of the shortest run of free own granules that `count` aligned ones fit in; 0: none.
  std::uint32_t shortest_fit(std::uint32_t count, std::uint32_t align) const {
    std::uint32_t best = 0;
    for_each_free_run([&](std::uint32_t first, std::uint32_t length) {
      const std::uint32_t skip = (align - first % align) % align;
      if (skip + count <= length && (best == 0 || length < best)) best = length;
    });
    return best;
  }
  // Length of the run of free own granules that the granule is in.
  std::uint32_t free_run_of(std::uint32_t granule) const {
    std::uint32_t found = 0;
    for_each_free_run([&](std::uint32_t first, std::uint32_t length) {
      if (first <= granule && granule < first + length) found = length;
    });
    return found;
  }

  void expect_same(const AddressSpace& space) const {
    std::uint32_t own = 0, free = 0, longest = 0;
    for (std::uint32_t i = 0; i < size(); ++i) {
      ASSERT_EQ(space.region_at(i), granules_[i].region) << i;
      own += granules_[i].kind == Kind::own;
      free += is_free(granules_[i]);
    }
    for_each_free_run([&](std::uint32_t, std::uint32_t length) { longest = std::max(longest, length); });
    ASSERT_EQ(space.own_bytes(), own * kGranuleBytes);
    ASSERT_EQ(space.free_bytes(), free * kGranuleBytes);
    ASSERT_EQ(space.largest_free_bytes(), longest * kGranuleBytes);
  }

 private:
  static bool is_free(const Granule& granule) { return granule.kind == Kind::own && granule.region == nullptr; }
  template <class See>
  void for_each_free_run(See see) const {
    for (std::uint32_t at = 0; at < size();) {
      std::uint32_t end = at;
      while (end < size() && is_free(granules_[end])) ++end;
      if (end != at) see(at, end - at);
      at = end + 1;
    }
  }

  std::vector<Granule> granules_;
};

class Play {
 public:
  explicit Play(std::uint64_t seed) : random_(seed) {}

  void act() {
    const std::uint32_t kind = pick(16);
    if (kind < 2) return grant();
    if (kind < 4) return withdraw();
    if (kind < 8) return add();
    if (kind < 12) return add_at();
    remove();
  }
  void expect_same() const { model_.expect_same(*space_); }
  // How often each outcome occurred.
  const std::map<std::string, int>& counts() const { return counts_; }

 private:
  static constexpr std::uint32_t kGranules = 256, kLargestShift = 4;

  std::uint32_t pick(std::uint32_t below) { return std::uint32_t(random_() % below); }
  void expect(const char* what, const Status& status, vmem_status expected) {
    const vmem_status got = status ? VMEM_OK : status.error().status;
    ASSERT_EQ(got, expected) << what << (status ? "" : ": " + status.error().message);
    ++counts_[fmt::format("{} {}", what, int(expected))];
  }

  void grant() {
    const std::uint32_t first = pick(kGranules), count = pick(48);
    vmem_status expected = VMEM_OK;
    if (!model_.inside(first, count))
      expected = VMEM_ERROR_ADDRESS_SPACE;
    else if (count == 0 || model_.any_kind(first, count, Model::Kind::own))
      expected = VMEM_ERROR_INVALID_VALUE;
    else if (model_.any_region(first, count))
      expected = VMEM_ERROR_IN_USE;
    expect("grant", space_->grant(first, count), expected);
    if (expected == VMEM_OK) model_.become(first, count, Model::Kind::own);
  }

  void withdraw() {
    const std::uint32_t first = pick(kGranules), count = pick(24);
    vmem_status expected = VMEM_OK;
    if (count == 0 || !model_.inside(first, count) || model_.any_kind(first, count, Model::Kind::others))
      expected = VMEM_ERROR_INVALID_VALUE;
    else if (model_.any_region(first, count))
      expected = VMEM_ERROR_IN_USE;
    expect("withdraw", space_->withdraw(first, count), expected);
    if (expected == VMEM_OK) model_.become(first, count, Model::Kind::others);
  }

  void add() {
    const std::uint32_t shift = pick(kLargestShift + 1), granules = (1 + pick(6)) << shift;
    const std::uint32_t fit = model_.shortest_fit(granules, 1u << shift);
    const Result<Region*> added = space_->add(granules, shift);
    expect("add", status_of(added), fit == 0 ? VMEM_ERROR_ADDRESS_SPACE : VMEM_OK);
    if (!added) return;
    const std::uint32_t first = (*added)->first.index;
    ASSERT_EQ(first % (1u << shift), 0u);
    ASSERT_EQ(model_.free_run_of(first), fit) << "not best fit";
    ASSERT_GE((*added)->serial, kFirstOwnSerial);
    begun(**added, first, granules, shift);
  }

  void add_at() {
    const std::uint32_t shift = pick(kLargestShift + 1), granules = ((1 + pick(6)) << shift) + (pick(16) == 0);
    const std::uint32_t aligned = pick(kGranules) >> shift << shift, first = aligned + (pick(8) == 0);
    const Serial serial{pick(32) == 0 ? std::uint64_t{1} << 63 : 1 + pick(60)};
    vmem_status expected = VMEM_OK;
    if (granules % (1u << shift) != 0 || serial >= kFirstOwnSerial || others_.contains(serial))
      expected = VMEM_ERROR_INVALID_VALUE;
    else if (!model_.inside(first, granules) || first % (1u << shift) != 0)
      expected = VMEM_ERROR_ADDRESS_SPACE;
    else if (model_.any_region(first, granules) || model_.any_kind(first, granules, Model::Kind::own))
      expected = VMEM_ERROR_IN_USE;
    const Result<Region*> added = space_->add_at(first, granules, shift, serial);
    expect("add_at", status_of(added), expected);
    if (!added) return;
    ASSERT_EQ((*added)->serial, serial);
    ASSERT_EQ((*added)->first.index, first);
    others_.emplace(serial, *added);
    begun(**added, first, granules, shift);
  }

  void begun(Region& region, std::uint32_t first, std::uint32_t granules, std::uint32_t shift) {
    ASSERT_EQ(region.granules, granules);
    ASSERT_EQ(region.page_count, granules >> shift);
    ASSERT_EQ(region.state, RegionState::empty);
    model_.put(first, granules, &region);
    live_.push_back(&region);
  }

  void remove() {
    if (live_.empty()) return;
    const std::uint32_t which = pick(std::uint32_t(live_.size()));
    Region& region = *live_[which];
    const bool others = others_.contains(region.serial);
    ASSERT_EQ(space_->owns(region), !others);
    if (others) others_.erase(region.serial);
    model_.put(region.first.index, region.granules, nullptr);
    space_->remove(region);
    ++counts_[others ? "removed another's" : "removed its own"];
    live_.erase(live_.begin() + which);
  }

  static Status status_of(const Result<Region*>& added) {
    return added ? Status{} : Status(std::unexpected(added.error()));
  }

  std::mt19937_64 random_;
  std::unique_ptr<AddressSpace> space_ = joint_space(kGranules);
  Model model_{kGranules};
  std::vector<Region*> live_;
  std::map<Serial, Region*> others_;
  std::map<std::string, int> counts_;
};

// Random calls, good and bad, against the model; the whole space is compared after each.
TEST(JointSpace, RandomCallsKeepTheSpaceAsTheModelHasIt) {
  const std::uint64_t first = test::printed_seed();
  std::map<std::string, int> sum;
  for (std::uint64_t seed = first; seed < first + 100; ++seed) {
    SCOPED_TRACE(fmt::format("VMEM_TEST_SEED={}", seed));
    Play play(seed);
    for (int step = 0; step < 1000 && !HasFatalFailure(); ++step) {
      play.act();
      play.expect_same();
    }
    ASSERT_FALSE(HasFatalFailure());
    for (const auto& [outcome, count] : play.counts()) sum[outcome] += count;
  }
  EXPECT_EQ(sum.size(), 15u) << "an outcome did not occur";
  for (const auto& [outcome, count] : sum) EXPECT_GE(count, 50) << outcome << " occurred too rarely to show anything";
}

}  // namespace
}  // namespace vmem::pagetable
