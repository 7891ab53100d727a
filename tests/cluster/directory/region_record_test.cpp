// The records of regions and names, and the index that is made of them.
#include "cluster/directory/region_record.hpp"

#include <gmock/gmock.h>

#include "cluster/directory/home_pages.hpp"
#include "cluster/directory/region_index.hpp"

namespace vmem::cluster::directory {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RegionRecord region(std::uint64_t serial = 7, std::uint64_t first_granule = 100) {
  RegionRecord record;
  record.serial = Serial{serial};
  record.name = "table";
  record.version = 3;
  record.first_granule = first_granule;
  record.granules = 16;
  record.page_bytes = 2u << 20;
  record.bytes = (16ull << 21) - 5;
  record.pages = 16;
  record.tenant = "t";
  record.readers = {"team-a", "*"};
  record.earlier = Serial{3};
  record.key = std::string("k\0\xff", 3);
  record.publisher = record.home = NodeId{4};
  record.copies = 2;
  record.term = Term{9};
  record.participants[0] = {.node = NodeId{4}, .session = Session{1}, .daemon = false};
  record.participants[63] = {.node = NodeId{5}, .session = Session{kFirstInvitation + 1}, .daemon = true};
  return record;
}

std::string why(const std::string& part, const std::string& other) {
  std::string value = json_of(region());
  const std::size_t place = value.find(part);
  EXPECT_NE(place, std::string::npos) << part << " in " << value;
  const Result<RegionRecord> parsed = parse_region("regions/7", value.replace(place, part.size(), other));
  return parsed ? "" : parsed.error().message;
}

TEST(RegionRecord, IsReadAsItWasWritten) {
  EXPECT_EQ(parse_region("regions/7", json_of(region())).value(), region());
  const NameRecord name{.serial = Serial{7}, .version = 3, .tenant = "t", .publisher = NodeId{4}};
  EXPECT_EQ(parse_name("names/table", json_of(name)).value(), name);
}

TEST(RegionRecord, AParticipantIsFoundByItsNodeAndBySession) {
  EXPECT_EQ(region().place_of(NodeId{4}), 0u);
  EXPECT_EQ(region().place_of(NodeId{4}, Session{1}), 0u);
  EXPECT_EQ(region().place_of(NodeId{4}, Session{2}), std::nullopt);
  EXPECT_EQ(region().place_of(NodeId{6}, Session{1}), std::nullopt);
  EXPECT_EQ(region().place_of(NodeId{}, Session{}), std::nullopt);
}

TEST(RegionRecord, ADamagedOneSaysWhatIsWrong) {
  EXPECT_THAT(why("\"alive\"", "\"dead\""), HasSubstr("field 'life' of the registry's record 'regions/7'"));
  EXPECT_THAT(why("4:1:program", "4:program"), HasSubstr("an entry that is not NODE:SESSION:KIND"));
  EXPECT_THAT(why("4:1:program", "0:1:program"), HasSubstr("an entry that is not"));
  EXPECT_THAT(why("4:1:program", "5:1:program"), HasSubstr("names a node twice"));
  EXPECT_THAT(why("\"pages\":16", "\"pages\":15"), HasSubstr("do not fill 15 pages"));
  EXPECT_THAT(why("\"pages\":16", "\"pages\":4294967296"), HasSubstr("field 'pages'"));
  EXPECT_THAT(why("\"copies\":2", "\"copies\":9"), HasSubstr("field 'copies'"));
  EXPECT_THAT(why("\"granules\":16", "\"granules\":0"), HasSubstr("are no range"));
  EXPECT_THAT(why("\"6b00ff\"", "\"6b00f\""), HasSubstr("field 'key' of the registry's record 'regions/7'"));
  EXPECT_THAT(why("\"6b00ff\"", "\"6b00-1\""), HasSubstr("is not in hexadecimal digits"));
  EXPECT_THAT(why("\"6b00ff\"", '"' + std::string(2 * kMostKey + 2, 'a') + '"'), HasSubstr("more than 64 bytes"));
  EXPECT_FALSE(parse_region("regions/0", json_of(region())));
  EXPECT_FALSE(parse_region("regions/x", json_of(region())));
}

// A home keeps 24 bytes a page of whatever a record says.
TEST(RegionRecord, OneOfAnEarlierVersionHasNoReadersAndNoVersionBefore) {
  std::string value = json_of(region());
  for (const std::string_view part : {R"("readers":["team-a","*"],)", R"("earlier":3,)"}) {
    const std::size_t place = value.find(part);
    ASSERT_NE(place, std::string::npos) << value;
    value.erase(place, part.size());
  }
  const Result<RegionRecord> parsed = parse_region("regions/7", value);
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_TRUE(parsed->readers.empty());
  EXPECT_EQ(parsed->earlier, Serial{});
}

TEST(RegionRecord, ItsTenantAndItsReadersMayReadIt) {
  const auto readers = [](std::string_view text) { return parse_readers(text).value(); };
  EXPECT_TRUE(may_read("t", "t", {}));
  EXPECT_FALSE(may_read("a", "t", {}));
  EXPECT_TRUE(may_read("a", "t", readers("b,a")));
  EXPECT_FALSE(may_read("ab", "t", readers("b,a")));
  EXPECT_TRUE(may_read("c", "t", readers("*")));
  EXPECT_TRUE(readers("").empty());
  for (const char* wrong : {",", "a,", ",a", "a,,b", "a b"}) EXPECT_FALSE(parse_readers(wrong)) << wrong;
  EXPECT_FALSE(parse_readers(std::string(kMostTenant + 1, 'a')));
  std::string many = "a";
  for (std::size_t i = 0; i < kMostReaders; ++i) many += ",a";
  EXPECT_FALSE(parse_readers(many));
}

TEST(RegionRecord, ARegionHasAtMost2To25Pages) {
  RegionRecord record = region();
  record.pages = kMostPages;
  record.bytes = record.pages * record.page_bytes;
  EXPECT_TRUE(check_region(record));
  record.pages = kMostPages + 1;
  record.bytes = record.pages * record.page_bytes;
  EXPECT_THAT(check_region(record).error().message, HasSubstr("at most 33554432 are possible"));
}

TEST(RegionRecord, NamesAreShortAndPlain) {
  for (const char* const name : {"a", "Table-1_2.bin", "model/7b", "0"}) EXPECT_TRUE(check_name(name)) << name;
  for (const char* const name : {"", "/a", ".a", "-a", "a b", "a\n", "\xc3\xa4", "a:b"})
    EXPECT_FALSE(check_name(name)) << name;
  EXPECT_TRUE(check_name(std::string(kMostName, 'a')));
  EXPECT_FALSE(check_name(std::string(kMostName + 1, 'a')));
  EXPECT_THAT(check_name("a b").error().message, HasSubstr("'a b' is no name of a region: a name has 1 to 128"));
}

Read reading(const std::vector<std::pair<RegionRecord, std::int64_t>>& regions) {
  Read read;
  for (const auto& [record, revision] : regions)
    read.records.push_back(
        {.key = region_key(record.serial), .value = json_of(record), .modified = Revision{revision}, .lease = {}});
  return read;
}

TEST(RegionIndex, ResolvesEveryGranule) {
  RegionIndex index;
  RegionIndex::Changes changes;
  ASSERT_TRUE(index.take_regions(reading({{region(7, 100), 5}, {region(8, 116), 6}}), Revision{10}, changes));
  EXPECT_THAT(changes.changed, ElementsAre(Serial{7}, Serial{8}));
  EXPECT_EQ(index.resolve(99), nullptr);
  EXPECT_EQ(index.resolve(100)->record.serial, Serial{7});
  EXPECT_EQ(index.resolve(115)->record.serial, Serial{7});
  EXPECT_EQ(index.resolve(131)->record.serial, Serial{8});
  EXPECT_EQ(index.resolve(132), nullptr);
}

TEST(RegionIndex, AnOldReadingBringsNothingBack) {
  RegionIndex index;
  RegionIndex::Changes changes;
  index.take_regions(reading({{region(), 5}}), Revision{10}, changes);
  EXPECT_TRUE(index.erase(Serial{7}, Revision{12}));
  EXPECT_FALSE(index.take_regions(reading({{region(), 5}}), Revision{11}, changes));
  EXPECT_EQ(index.find(Serial{7}), nullptr);
  EXPECT_FALSE(index.put({.record = region(), .modified = Revision{5}}));
  RegionRecord later = region();
  later.home = NodeId{5};
  EXPECT_TRUE(index.put({.record = later, .modified = Revision{13}}));
  EXPECT_FALSE(index.put({.record = region(), .modified = Revision{12}}));
  EXPECT_EQ(index.find(Serial{7})->record.home, NodeId{5});
}

TEST(HomePages, ReadersAskReadersFirstAndTheOwnerLast) {
  HomePages pages(1);
  pages.add_keeper(0, 0);
  EXPECT_THAT(pages.sources(0, 1, 0), ElementsAre(0u));
  pages.come(0, 1);
  EXPECT_THAT(pages.sources(0, 2, 0), ElementsAre(1u, 0u)) << "one that is fetching it";
  pages.come(0, 2);
  EXPECT_THAT(pages.sources(0, 1, 0), ElementsAre(0u)) << "not from one that began later";
  pages.add_cacher(0, 1);
  EXPECT_THAT(pages.sources(0, 3, 0), ElementsAre(2u, 1u, 0u)) << "the one that was named least";
  EXPECT_THAT(pages.sources(0, 3, place_bit(1)), ElementsAre(2u, 0u));
  EXPECT_FALSE(pages.remove(0, 1));
  EXPECT_TRUE(pages.remove(0, 0)) << "the last keeper";
}

}  // namespace
}  // namespace vmem::cluster::directory
