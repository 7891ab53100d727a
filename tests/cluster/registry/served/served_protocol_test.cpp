// Round trips, truncation and noise of all that is encoded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "cluster/registry/request_check.hpp"
#include "cluster/registry/served/namespace_file.hpp"
#include "cluster/registry/served/protocol.hpp"
#include "cluster/registry/served/record_codec.hpp"

namespace vmem::cluster::served {
namespace {

std::vector<Question> questions() {
  const auto question = [](auto what) {
    return Question{.client = 0xfedcba9876543210, .number = 17, .cluster = "my-cluster", .what = std::move(what)};
  };
  return {
      question(Open{}),
      question(WritePiece{.session = {Incarnation{5}, 3}, .order = 9, .total = 70'000, .offset = 2, .bytes = "abc"}),
      question(FetchPage{.prefix = std::string("a\0b", 3), .revision = Revision{77}, .offset = 12}),
      question(Renew{LeaseId{4}}), question(End{LeaseId{1LL << 61}})};
}

std::vector<Answer> answers() {
  const auto answer = [](auto what) {
    return Answer{.client = 3, .number = 17, .incarnation = Incarnation{8}, .what = std::move(what)};
  };
  return {answer(Opened{4}),
          answer(Taken{1000}),
          answer(Page{.revision = Revision{7}, .total = 9, .offset = 4, .bytes = "12345"}),
          answer(Outcome{.revision = {}, .what = Error{VMEM_ERROR_OUT_OF_MEMORY, 0, "why"}}),
          answer(Outcome{.revision = Revision{3}, .what = Committed{true}}),
          answer(Outcome{.revision = Revision{3}, .what = Granted{LeaseId{5}, 90}}),
          answer(Outcome{.revision = Revision{3}, .what = Renewed{0}}),
          answer(Outcome{.revision = {}, .what = Ended{}}),
          answer(Declined{{VMEM_ERROR_TIMEOUT, 0, "later"}}),
          answer(NoSession{})};
}

TEST(ServedProtocol, AQuestionComesBack) {
  for (const Question& each : questions()) EXPECT_EQ(decode_question(encode(each)), each);
}

// Answers are compared as bytes: an Error has no equality.
TEST(ServedProtocol, AnAnswerComesBack) {
  std::size_t kind = 0;
  std::set<std::string> all;
  for (const Answer& each : answers()) {
    const std::string bytes = encode(each);
    const auto decoded = decode_answer(bytes);
    ASSERT_TRUE(decoded) << kind;
    EXPECT_EQ(encode(*decoded), bytes);
    EXPECT_EQ(decoded->what.index(), each.what.index());
    EXPECT_TRUE(all.insert(bytes).second);
    ++kind;
  }
  const auto error = decode_answer(encode(answers()[3]));
  EXPECT_EQ(std::get<Error>(std::get<Outcome>(error->what).what).message, "why");
  EXPECT_EQ(std::get<Error>(std::get<Outcome>(error->what).what).status, VMEM_ERROR_OUT_OF_MEMORY);
}

TEST(ServedProtocol, NoPartOfAMessageIsOne) {
  std::vector<std::string> all;
  for (const Question& each : questions()) all.push_back(encode(each));
  for (const Answer& each : answers()) all.push_back(encode(each));
  for (const std::string& bytes : all) {
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(decode_question(bytes.substr(0, size)));
      EXPECT_FALSE(decode_answer(bytes.substr(0, size)));
    }
    EXPECT_FALSE(decode_question(bytes + '\0'));
    EXPECT_FALSE(decode_answer(bytes + '\0'));
    EXPECT_FALSE(decode_question(bytes).has_value() && decode_answer(bytes).has_value());
  }
}

TEST(ServedProtocol, NoiseIsRefusedOrUnderstoodInOneWay) {
  std::mt19937_64 random(5);
  std::size_t understood = 0;
  for (int round = 0; round < 2000; ++round) {
    for (const Question& each : questions()) {
      std::string bytes = encode(each);
      bytes[random() % bytes.size()] ^= static_cast<char>(1 + random() % 255);
      if (const auto decoded = decode_question(bytes)) {
        ++understood;
        EXPECT_EQ(encode(*decoded), bytes);
      }
    }
    for (const Answer& each : answers()) {
      std::string bytes = encode(each);
      bytes[random() % bytes.size()] ^= static_cast<char>(1 + random() % 255);
      if (const auto decoded = decode_answer(bytes)) {
        EXPECT_NE(decoded->incarnation, Incarnation{});
      }
    }
  }
  EXPECT_GT(understood, 0u);
}

TEST(ServedProtocol, WhatIsBeyondALimitIsRefused) {
  const auto piece = [](std::uint32_t total, std::uint32_t offset, std::string bytes, std::uint64_t order = 1) {
    return encode(Question{.client = 1,
                           .number = 1,
                           .cluster = "c",
                           .what = WritePiece{.session = {Incarnation{1}, 1},
                                              .order = order,
                                              .total = total,
                                              .offset = offset,
                                              .bytes = std::move(bytes)}});
  };
  EXPECT_TRUE(decode_question(piece(kMostWriteBytes, 0, std::string(kPieceBytes, 'a'))));
  EXPECT_FALSE(decode_question(piece(kMostWriteBytes + 1, 0, "a")));
  EXPECT_FALSE(decode_question(piece(kMostWriteBytes, 0, std::string(kPieceBytes + 1, 'a'))));
  EXPECT_FALSE(decode_question(piece(10, 8, "abc")));
  EXPECT_FALSE(decode_question(piece(10, 11, "")));
  EXPECT_FALSE(decode_question(piece(10, 3, "")));
  EXPECT_FALSE(decode_question(piece(1, 0, "a", 0)));
  const auto fetch = [](std::size_t size) {
    return encode(
        Question{.client = 1, .number = 1, .cluster = "c", .what = FetchPage{.prefix = std::string(size, 'p')}});
  };
  EXPECT_TRUE(decode_question(fetch(kMostPrefixBytes)));
  EXPECT_FALSE(decode_question(fetch(kMostPrefixBytes + 1)));
}

TEST(ServedProtocol, ALongErrorFitsIntoAnAnswer) {
  const std::string bytes = encode(Answer{.client = 1,
                                          .number = 1,
                                          .incarnation = Incarnation{1},
                                          .what = Declined{{VMEM_ERROR_INTERNAL, 0, std::string(100'000, '\n')}}});
  ASSERT_TRUE(decode_answer(bytes));
  EXPECT_LE(bytes.size(), 2 * kMostTextBytes);
}

TEST(ServedProtocol, NamesOfClusters) {
  for (const std::string& name : {std::string("a"), std::string("Prod-1.a_B"), std::string(kMostClusterBytes, 'c')})
    EXPECT_TRUE(is_cluster_name(name)) << name;
  for (const std::string& name : {std::string(), std::string("a b"), std::string("a/b"), std::string("a\0", 2),
                                  std::string(kMostClusterBytes + 1, 'c')})
    EXPECT_FALSE(is_cluster_name(name)) << name;
}

TEST(RecordCodec, WritesComeBackAndPartsDoNot) {
  const Commit commit{.conditions = {{.key = "a", .modified = Revision{3}}, {.key = "", .modified = {}}},
                      .edits = {{.key = "k", .value = std::string(3, '\0'), .lease = LeaseId{5}},
                                {.key = "e", .value = std::nullopt, .lease = {}},
                                {.key = "f", .value = "", .lease = {}}}};
  for (const Write& each : {Write(commit), Write(GrantLease{90}), Write(Commit{})}) {
    const std::string bytes = encode_write(each);
    const auto decoded = decode_write(bytes);
    ASSERT_TRUE(decoded);
    EXPECT_EQ(encode_write(*decoded), bytes);
    EXPECT_EQ(decoded->index(), each.index());
    for (std::size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(decode_write(bytes.substr(0, size)));
    EXPECT_FALSE(decode_write(bytes + "x"));
  }
  const Commit decoded = std::get<Commit>(*decode_write(encode_write(commit)));
  EXPECT_EQ(decoded.edits[0].value, commit.edits[0].value);
  EXPECT_EQ(decoded.edits[0].lease, LeaseId{5});
  EXPECT_FALSE(decoded.edits[1].value);
  EXPECT_EQ(decoded.edits[2].value, "");
  EXPECT_EQ(decoded.conditions[0].modified, Revision{3});
}

TEST(RecordCodec, ALargestCommitFits) {
  Commit commit;
  for (std::size_t i = 0; i < kMostConditions; ++i) commit.conditions.push_back({.key = "", .modified = Revision{1}});
  for (std::size_t i = 0; i < kMostEdits; ++i)
    commit.edits.push_back({.key = std::to_string(i), .value = "", .lease = {}});
  commit.edits.back() = {.key = "", .value = std::string(kMostCommitBytes - 1000, 'v'), .lease = {}};
  EXPECT_LE(encode_write(commit).size(), kMostWriteBytes);
}

TEST(RecordCodec, RecordsAreSortedAndOnce) {
  const auto record = [](const char* key) {
    return Record{.key = key, .value = "v", .modified = Revision{2}, .lease = {}};
  };
  const std::vector<Record> good{record("a"), record("b")};
  EXPECT_EQ(decode_records(encode_records(good)), good);
  EXPECT_FALSE(decode_records(encode_records({record("b"), record("a")})));
  EXPECT_FALSE(decode_records(encode_records({record("a"), record("a")})));
  EXPECT_FALSE(decode_records(encode_records({{.key = "a", .value = "", .modified = {}, .lease = {}}})));
}

NamespaceFile sample_file() {
  return {.place = {.identity = "key-1", .cluster = "c"},
          .image = {.records = {{.key = "a", .value = "1", .modified = Revision{41}, .lease = {}},
                                {.key = "nodes/7", .value = "seven", .modified = Revision{42}, .lease = LeaseId{6}}},
                    .leases = {{.id = LeaseId{4}, .seconds = 90}, {.id = LeaseId{6}, .seconds = 5}},
                    .revision = Revision{43},
                    .last_lease = LeaseId{9}}};
}

TEST(NamespaceFile, ComesBack) {
  const NamespaceFile file = sample_file();
  const auto decoded = decode_namespace(file_name(file.place), encode_file(file));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(*decoded, file);
  EXPECT_EQ(*decode_incarnation("incarnation", encode_file(Incarnation{123})), Incarnation{123});
}

TEST(NamespaceFile, EachCutAndEachFlippedBitIsFound) {
  const NamespaceFile file = sample_file();
  const std::string name = file_name(file.place);
  for (const auto& [bytes, is_namespace] :
       {std::pair(encode_file(file), true), std::pair(encode_file(Incarnation{123}), false)}) {
    const auto refused = [&](const std::string& damaged) {
      const Error error =
          is_namespace ? decode_namespace(name, damaged).error() : decode_incarnation(name, damaged).error();
      return error.status == VMEM_ERROR_INVALID_OPTION && error.message.contains(name) &&
             error.message.contains("is damaged");
    };
    for (std::size_t size = 0; size < bytes.size(); ++size) ASSERT_TRUE(refused(bytes.substr(0, size))) << size;
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      std::string flipped = bytes;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
      ASSERT_TRUE(refused(flipped)) << bit;
    }
  }
}

TEST(NamespaceFile, OneInAnotherPlaceIsRefused) {
  const NamespaceFile file = sample_file();
  EXPECT_FALSE(decode_namespace(file_name({.identity = "key-2", .cluster = "c"}), encode_file(file)));
  EXPECT_FALSE(decode_namespace(file_name(file.place), encode_file(Incarnation{1})));
  EXPECT_NE(file_name({.identity = "a", .cluster = "bc"}), file_name({.identity = "ab", .cluster = "c"}));
}

}  // namespace
}  // namespace vmem::cluster::served
