// The records' JSON, and what is made of records that are damaged or of another version.
#include <gmock/gmock.h>

#include "cluster/enrollment/cluster_parameters.hpp"
#include "cluster/enrollment/node_record.hpp"
#include "cluster/enrollment/serial_counter.hpp"
#include "cluster/enrollment/slice_desk.hpp"

namespace vmem::cluster {
namespace {

using ::testing::HasSubstr;

NodeRecord node() {
  return {.incarnation = Incarnation{UINT64_MAX},
          .addresses = {"10.0.0.1:7000", "[fe80::1]:7001"},
          .transport = 99,
          .boot = "4f3a",
          .pid = 17,
          .kind = "daemon",
          .versions = {.least = 5, .most = 6},
          .labels = {{"rack", "r1"}, {"node", "n\"1"}},
          .lends = {.memory = 1ull << 40, .disk = 5, .hbm = 0},
          .token = "ab"};
}

std::string why(std::string_view value) {
  const auto parsed = parse_node_record("nodes/7", value);
  return parsed ? "" : parsed.error().message;
}

// The value with a part replaced.
std::string with(std::string_view part, std::string_view other) {
  std::string value = json_of(node());
  const auto place = value.find(part);
  EXPECT_NE(place, std::string::npos);
  return value.replace(place, part.size(), other);
}

TEST(NodeRecord, IsReadAsItWasWritten) {
  EXPECT_EQ(parse_node_record("nodes/7", json_of(node())).value(), node());
  EXPECT_EQ(parse_node_record("nodes/7", json_of(NodeRecord{})).value(), NodeRecord{});
}

TEST(NodeRecord, HbmThatIsMappedIsReadAsItWasWrittenAndMayBeAbsent) {
  NodeRecord lender = node();
  lender.lends.hbm = 64;
  EXPECT_EQ(json_of(lender).find("mapped"), std::string::npos) << "as earlier versions write it";
  lender.mapped = {.socket = "/run/user/1000/vmem/hbm-7", .gpu = "GPU-01", .bytes = 48};
  EXPECT_EQ(parse_node_record("nodes/7", json_of(lender)).value(), lender);
  EXPECT_EQ(lender.stored_pages(), lender.lends.pages() - 48);
  lender.mapped.bytes = 65;
  const auto more = parse_node_record("nodes/7", json_of(lender));
  ASSERT_FALSE(more);
  EXPECT_THAT(more.error().message, HasSubstr("field 'mapped.bytes'"));
}

TEST(HbmParts, UnderALimitWhatIsMappedIsTheLastToShrink) {
  const auto of = [](std::optional<HbmLimit> limit) { return hbm_parts(40, 16, limit); };
  EXPECT_EQ(of(std::nullopt), (HbmParts{.mapped = 16, .stored = 24}));
  EXPECT_EQ(of(HbmLimit{50}), (HbmParts{.mapped = 16, .stored = 24}));
  EXPECT_EQ(of(HbmLimit{30}), (HbmParts{.mapped = 16, .stored = 14}));
  EXPECT_EQ(of(HbmLimit{16}), (HbmParts{.mapped = 16, .stored = 0}));
  EXPECT_EQ(of(HbmLimit{9}), (HbmParts{.mapped = 9, .stored = 0}));
  EXPECT_EQ(of(HbmLimit{0}), (HbmParts{}));
  EXPECT_EQ(hbm_parts(40, 40, HbmLimit{30}), (HbmParts{.mapped = 30, .stored = 0}));
}

TEST(NodeRecord, ADamagedOneSaysWhatIsWrong) {
  EXPECT_THAT(why("{\"format\":"), HasSubstr("record 'nodes/7' is no JSON object: '{\"format\":'"));
  EXPECT_THAT(why("[1]"), HasSubstr("is no JSON object"));
  EXPECT_THAT(why(""), HasSubstr("is no JSON object"));
  EXPECT_THAT(why(std::string(1 << 20, ' ') + "{}"), HasSubstr("is no JSON object")) << "too long";
  EXPECT_THAT(why("{}"), HasSubstr("field 'format' of the registry's record 'nodes/7' is missing"));
  EXPECT_THAT(why(with("\"pid\":17", "\"pid\":-17")), HasSubstr("field 'pid'"));
  EXPECT_THAT(why(with("\"pid\":17", "\"pid\":1.5")), HasSubstr("is no whole number"));
  EXPECT_THAT(why(with("\"pid\":17", "\"pid\":99999999999999999999")), HasSubstr("field 'pid'"));
  EXPECT_THAT(why(with("\"disk\":5", "\"desk\":5")), HasSubstr("field 'lends.disk' of the registry's record"));
  EXPECT_THAT(why(with("\"boot\":\"4f3a\"", "\"boot\":4")), HasSubstr("field 'boot'"));
  EXPECT_THAT(why(with("\"10.0.0.1:7000\"", "7000")), HasSubstr("field 'addresses'"));
  EXPECT_THAT(why(with("\"r1\"", "{}")), HasSubstr("field 'labels'"));
  EXPECT_THAT(why(with("\"r1\"", '"' + std::string(1000, 'r') + '"')), HasSubstr("field 'labels'"));
}

TEST(NodeRecord, AnotherFormatIsRefusedAndAFieldThatALaterVersionAddsIsNot) {
  EXPECT_THAT(why(with("\"format\":1", "\"format\":2")), HasSubstr("is 2, and this version of vmem reads format 1"));
  EXPECT_EQ(why(with("\"format\":1", "\"format\":1,\"more\":[{}]")), "");
}

TEST(NodeRecord, BytesThatAreNoUtf8AreReplaced) {
  NodeRecord odd = node();
  odd.boot = "\xff\xfe";
  EXPECT_TRUE(parse_node_record("nodes/7", json_of(odd)));
}

TEST(NodeRecord, KeysHoldIdsFromOne) {
  EXPECT_EQ(id_in_key(node_key(NodeId{7}), kNodesPrefix), NodeId{7});
  EXPECT_EQ(id_in_key(drain_key(NodeId{7}), kDrainPrefix), NodeId{7});
  for (const char* const key :
       {"nodes/", "nodes/0", "nodes/07", "nodes/7x", "nodes/-7", "nodes/99999999999999999999", "drain/7", "node"})
    EXPECT_EQ(id_in_key(key, kNodesPrefix), std::nullopt) << key;
}

TEST(DrainOrder, IsReadAsItWasWrittenAndElseIsOneOfTheDefaults) {
  const DrainOrder order{.rate = 5u << 20, .exit = true, .force = true};
  EXPECT_EQ(parse_drain_order("drain/7", json_of(order)), order);
  EXPECT_EQ(parse_drain_order("drain/7", R"({"format":1,"rate":5,"exit":1})"), (DrainOrder{.rate = 5, .exit = true}))
      << "as earlier versions write it";
  for (const char* const value : {"1", "", "{}", "{\"format\":1,\"rate\":-1}"})
    EXPECT_EQ(parse_drain_order("drain/7", value), DrainOrder{}) << value;
}

TEST(Holdings, AreReadAsTheyWereWritten) {
  const Holdings holdings{.memory = 1,
                          .disk = 2,
                          .hbm = 5,
                          .copies = 3,
                          .leased = 4,
                          .hbm_taken = 6,
                          .hbm_mapped = 4,
                          .hbm_mapper = 99,
                          .hbm_direct = 7,
                          .hbm_staged = 8,
                          .drains = true};
  EXPECT_EQ(parse_holdings("holds/7", json_of(holdings)).value(), holdings);
  EXPECT_EQ(holdings.stored_hbm(), 1u);
  EXPECT_EQ(holdings.stored(), 4u);
  EXPECT_EQ(parse_holdings("holds/7", "1").error().status, VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(parse_holdings("holds/7", json_of(Holdings{.hbm = 1, .hbm_mapped = 2})).error().message,
              HasSubstr("contradicts itself"));
}

TEST(Holdings, OfAVersionThatKnowsNoHbmAreRead) {
  const char* const written = R"({"format":1,"memory":1,"disk":2,"copies":3,"leased":4,"drains":0})";
  const Holdings holdings{.memory = 1, .disk = 2, .copies = 3, .leased = 4};
  EXPECT_EQ(parse_holdings("holds/7", written).value(), holdings);
}

TEST(HbmLimit, IsReadAsItWasWrittenAndItsKeyIsNoDrainOrders) {
  EXPECT_EQ(parse_hbm_limit("drain/7/hbm", json_of(HbmLimit{.bytes = 9})).value(), HbmLimit{.bytes = 9});
  EXPECT_EQ(parse_hbm_limit("drain/7/hbm", "{}").error().status, VMEM_ERROR_INVALID_OPTION);
  EXPECT_EQ(hbm_limit_key(NodeId{7}), "drain/7/hbm");
  EXPECT_EQ(id_in_hbm_limit_key("drain/7/hbm"), NodeId{7});
  EXPECT_EQ(id_in_hbm_limit_key("drain/7"), std::nullopt);
  EXPECT_EQ(id_in_hbm_limit_key("nodes/7/hbm"), std::nullopt);
  EXPECT_EQ(id_in_key("drain/7/hbm", kDrainPrefix), std::nullopt);
}

TEST(ClusterParameters, AreReadAsTheyWereWritten) {
  const ClusterParameters parameters{
      .base = 1ull << 45, .space_bytes = 1ull << 46, .granule_bytes = 2u << 20, .page_rule = "2MiB to 64MiB"};
  EXPECT_EQ(parse_parameters(json_of(parameters)).value(), parameters);
  EXPECT_EQ(parameters.slices(), 1024u);
  EXPECT_TRUE(compare(parameters, parameters));
}

TEST(ClusterParameters, ThatContradictThemselvesAreRefused) {
  ClusterParameters parameters{.space_bytes = 1ull << 46};
  parameters.slice_bytes = 0;
  EXPECT_EQ(parameters.slices(), 0u);
  EXPECT_THAT(parse_parameters(json_of(parameters)).error().message, HasSubstr("contradicts itself"));
  parameters.slice_bytes = 1;
  EXPECT_FALSE(parse_parameters(json_of(parameters))) << "2^46 slices";
}

TEST(SerialCounter, IsADecimalNumberOrAbsent) {
  const auto read = [](std::string value) {
    return read_counter(
        Read{{{.key = "counters/serial", .value = std::move(value), .modified = Revision{5}, .lease = {}}}});
  };
  EXPECT_EQ(read_counter(Read{})->last, 0u);
  EXPECT_EQ(read("17")->last, 17u);
  EXPECT_EQ(read("17")->modified, Revision{5});
  for (const char* const value : {"", "017", "+1", "1 ", "1e3", "18446744073709551616", "9223372036854775807"})
    EXPECT_FALSE(read(value)) << value;
}

TEST(SliceTable, ADamagedRecordCountsAsTaken) {
  const SliceTable table = SliceTable::from(
      Read{{{.key = "slices/3", .value = slice_value(NodeId{7}), .modified = Revision{5}, .lease = {}},
            {.key = "slices/4", .value = "?", .modified = Revision{6}, .lease = {}},
            {.key = "slices/four", .value = slice_value(NodeId{7}), .modified = Revision{7}, .lease = {}}}});
  ASSERT_EQ(table.taken.size(), 2u);
  EXPECT_EQ(table.taken.at(Slice{3}).node, NodeId{7});
  EXPECT_EQ(table.taken.at(Slice{4}).node, NodeId{});
}

}  // namespace
}  // namespace vmem::cluster
