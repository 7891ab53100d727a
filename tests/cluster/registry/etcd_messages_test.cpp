#include "cluster/registry/etcd/messages.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "cluster/registry/etcd/base64.hpp"

namespace vmem::cluster {
namespace {

using ::testing::HasSubstr;

const std::string kPrefix = key_prefix_of("c");

std::string in_base64(std::string_view key) { return to_base64(kPrefix + std::string(key)); }

TEST(Base64, BytesComeBack) {
  const std::pair<std::string_view, std::string_view> known[] = {
      {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"\xff\xfe\xfb", "//77"}};
  for (const auto& [bytes, text] : known) {
    EXPECT_EQ(to_base64(bytes), text);
    EXPECT_EQ(from_base64(text), bytes);
  }
}

TEST(Base64, OtherTextIsRefused) {
  for (const char* text :
       {"Z", "Zg", "Zg=", "Zg===", "=Zg=", "====", "Zm8-", "Zm 8", "Zh==", "Zm9=", "Zg==Zg==", "Z\xff=="})
    EXPECT_FALSE(from_base64(text)) << text;
}

TEST(EtcdMessages, ReadsAskForARangeOfKeys) {
  EXPECT_EQ(kPrefix, "/vmem/c/");
  const auto body = [](const char* from, const std::string& to) {
    return fmt::format(R"({{"key":"{}","range_end":"{}"}})", in_base64(from), to_base64(to));
  };
  EXPECT_EQ(encode_request(ReadPrefix{"nodes/"}, kPrefix).path, "/v3/kv/range");
  EXPECT_EQ(encode_request(ReadPrefix{"nodes/"}, kPrefix).body, body("nodes/", "/vmem/c/nodes0"));
  EXPECT_EQ(encode_request(ReadPrefix{""}, kPrefix).body, body("", "/vmem/c0"));
  EXPECT_EQ(encode_request(ReadPrefix{"a\xff\xff"}, kPrefix).body, body("a\xff\xff", "/vmem/c/b"));
  EXPECT_EQ(encode_request(ReadPrefix{"\xff"}, kPrefix).body, body("\xff", "/vmem/c0"));
}

TEST(EtcdMessages, CommitsAreTransactions) {
  const Commit commit{.conditions = {{.key = "a", .modified = Revision{5}}},
                      .edits = {{.key = "a", .value = "v", .lease = LeaseId{9'007'199'254'740'993}},
                                {.key = "b", .value = std::nullopt, .lease = {}}}};
  const EtcdRequest request = encode_request(commit, kPrefix);
  EXPECT_EQ(request.path, "/v3/kv/txn");
  EXPECT_EQ(request.body,
            fmt::format(R"({{"compare":[{{"key":"{0}","mod_revision":"5","result":"EQUAL","target":"MOD"}}],)"
                        R"("success":[{{"request_put":{{"key":"{0}","lease":"9007199254740993","value":"dg=="}}}},)"
                        R"({{"request_delete_range":{{"key":"{1}"}}}}]}})",
                        in_base64("a"), in_base64("b")));
}

TEST(EtcdMessages, LeasesHaveNumbersOf64Bits) {
  EXPECT_EQ(encode_request(GrantLease{90}, kPrefix).body, R"({"TTL":"90"})");
  EXPECT_EQ(encode_request(RenewLease{LeaseId{7587866154123456789}}, kPrefix).body, R"({"ID":"7587866154123456789"})");
  EXPECT_EQ(encode_request(EndLease{LeaseId{1}}, kPrefix).path, "/v3/lease/revoke");
  EXPECT_EQ(encode_authenticate("me", "\"\\\x01").body, R"({"name":"me","password":"\"\\\u0001"})");
}

template <class What>
What decoded(const RegistryRequest& request, const std::string& body, std::int64_t revision) {
  const EtcdAnswer answer = decode_answer(request, kPrefix, 200, body);
  const auto* reply = std::get_if<Reply>(&answer);
  if (reply == nullptr) {
    const auto* other = std::get_if<Unintelligible>(&answer);
    ADD_FAILURE() << (other ? other->why : "refused");
    return {};
  }
  EXPECT_EQ(std::int64_t(reply->revision), revision);
  return std::get<What>(reply->what);
}

TEST(EtcdMessages, AnswersAreRead) {
  const std::string header = R"("header":{"cluster_id":"14841639068965178418","revision":"8","raft_term":"2"})";
  EXPECT_TRUE(decoded<Read>(ReadPrefix{""}, "{" + header + "}", 8).records.empty());
  const auto records =
      decoded<Read>(ReadPrefix{"a"},
                    fmt::format(R"({{{},"kvs":[{{"key":"{}","create_revision":"2","mod_revision":"3","version":"1"}},)"
                                R"({{"key":"{}","mod_revision":4,"value":"dg==","lease":"77"}}],"count":"2"}})",
                                header, in_base64("a"), in_base64("ab")),
                    8)
          .records;
  EXPECT_EQ(records, (std::vector<Record>{{.key = "a", .value = "", .modified = Revision{3}, .lease = {}},
                                          {.key = "ab", .value = "v", .modified = Revision{4}, .lease = LeaseId{77}}}));
  EXPECT_TRUE(decoded<Committed>(Commit{}, "{" + header + R"(,"succeeded":true,"responses":[{}]})", 8).done);
  EXPECT_FALSE(decoded<Committed>(Commit{}, "{" + header + "}", 8).done);
  const auto granted = decoded<Granted>(GrantLease{5}, "{" + header + R"(,"ID":"7587866154123456789","TTL":"6"})", 8);
  EXPECT_EQ(granted.lease, LeaseId{7587866154123456789});
  EXPECT_EQ(granted.seconds, 6u);
  const RenewLease renew{LeaseId{3}};
  EXPECT_EQ(decoded<Renewed>(renew, R"({"result":{)" + header + R"(,"ID":"3","TTL":"6"}})" + "\n", 8).seconds, 6u);
  EXPECT_EQ(decoded<Renewed>(renew, R"({"result":{)" + header + R"(,"ID":"3"}})", 8).seconds, 0u);
  EXPECT_EQ(decoded<Renewed>(renew, R"({"result":{)" + header + R"(,"ID":"3","TTL":"-1"}})", 8).seconds, 0u);
  (void)decoded<Ended>(EndLease{}, "{" + header + "}", 0);
}

TEST(EtcdMessages, ARefusalHasACodeAndAMessage) {
  const std::pair<long, const char*> refusals[] = {
      {401, R"({"error":"no!","message":"no!","code":16})"},
      {401, R"({"error":"no!","code":16})"},
      {401, R"({"code":16,"message":"no!","details":[]})"},
      {200, R"({"error":{"grpc_code":16,"http_code":401,"message":"no!","http_status":"Unauthorized"}})"},
      {200, R"({"error":{"code":16,"message":"no!","details":[]}})"},
  };
  for (const auto& [status, body] : refusals) {
    const EtcdAnswer answer = decode_answer(RenewLease{}, kPrefix, status, body);
    const auto* refusal = std::get_if<EtcdRefusal>(&answer);
    ASSERT_NE(refusal, nullptr) << body;
    EXPECT_EQ(refusal->code, EtcdCode::unauthenticated);
    EXPECT_EQ(refusal->message, "no!");
    EXPECT_TRUE(asks_for_token(*refusal));
  }
}

struct Malformed {
  RegistryRequest request;
  long status;
  std::string body, why;
};

const std::string kHeader = R"("header":{"revision":"8"})";

std::vector<Malformed> malformed_headers() {
  const ReadPrefix read{"a"};
  return {
      {read, 200, "", "no JSON object"},
      {read, 200, "<html>", "no JSON object"},
      {read, 200, "[]", "no JSON object"},
      {read, 200, "{\"header\":", "no JSON object"},
      {read, 200, "{} {}", "no JSON object"},
      {read, 200, std::string(100'000, '['), "no JSON object"},
      {read, 200, "{\"\xff\":1}", "no JSON object"},
      {read, 200, "{}", "'header' is missing"},
      {read, 200, R"({"header":7})", "'header' is no object"},
      {read, 200, R"({"header":{}})", "'revision' is 0"},
      {read, 200, R"({"header":{"revision":"-1"}})", "'revision' is -1"},
      {read, 200, R"({"header":{"revision":"1x"}})", "'revision' is no integer"},
      {read, 200, R"({"header":{"revision":" 1"}})", "'revision' is no integer"},
      {read, 200, R"({"header":{"revision":1.5}})", "'revision' is no integer"},
      {read, 200, R"({"header":{"revision":null}})", "'revision' is no integer"},
      {read, 200, R"({"header":{"revision":18446744073709551615}})", "'revision' is no integer"},
      {read, 200, R"({"header":{"revision":"9223372036854775808"}})", "'revision' is no integer"},
  };
}

std::vector<Malformed> malformed_records() {
  const ReadPrefix read{"a"};
  const auto record = [&](const std::string& fields) { return "{" + kHeader + R"(,"kvs":[{)" + fields + "}]}"; };
  const std::string key = fmt::format(R"("key":"{}")", in_base64("a")), rest = R"(,"mod_revision":"1")";
  return {
      {read, 200, "{" + kHeader + R"(,"kvs":{}})", "'kvs' is no array"},
      {read, 200, "{" + kHeader + R"(,"kvs":[1]})", "no object"},
      {read, 200, "{" + kHeader + R"(,"more":true})", "records are missing"},
      {read, 200, "{" + kHeader + R"(,"more":1})", "'more' is neither"},
      {read, 200, record(rest.substr(1)), "was not asked for"},
      {read, 200, record(R"("key":"L3ZtZW0vZC9h")" + rest), "'/vmem/d/a', which was not asked for"},
      {read, 200, record(fmt::format(R"("key":"{}")", in_base64("b")) + rest), "was not asked for"},
      {read, 200, record(R"("key":"a!")" + rest), "'key' is no base64"},
      {read, 200, record(R"("key":1)" + rest), "'key' is no string"},
      {read, 200, record(key), "'mod_revision' is 0"},
      {read, 200, record(key + rest + R"(,"value":"a")"), "'value' is no base64"},
      {read, 200, record(key + rest + R"(,"lease":"-5")"), "'lease' is -5"},
      {read, 200, record(key + rest + "},{" + key + rest), "out of order"},
  };
}

std::vector<Malformed> malformed_others() {
  const ReadPrefix read{"a"};
  return {
      {read, 404, "404 page not found\n", "HTTP 404, '404 page not found"},
      {read, 500, R"({"error":"x"})", "'code' is 0"},
      {read, 500, R"({"error":"x","code":17})", "'code' is 17"},
      {read, 500, "{" + kHeader + "}", "'code' is 0"},
      {read, 200, R"({"error":[]})", "'code' is 0"},
      {read, 400, R"({"error":"x","code":3,"message":4})", "'message' is no string"},
      {Commit{}, 200, "{" + kHeader + R"(,"succeeded":"true"})", "'succeeded' is neither"},
      {Commit{}, 200, R"({"succeeded":true})", "'header' is missing"},
      {GrantLease{1}, 200, "{" + kHeader + R"(,"TTL":"1"})", "'ID' is 0"},
      {GrantLease{1}, 200, "{" + kHeader + R"(,"ID":"1"})", "'TTL' is 0"},
      {GrantLease{1}, 200, "{" + kHeader + R"(,"ID":"1","TTL":"4294967296"})", "'TTL' is 4294967296"},
      {RenewLease{LeaseId{1}}, 200, "{" + kHeader + "}", "'result' is missing"},
      {RenewLease{LeaseId{1}}, 200, R"({"result":{)" + kHeader + R"(,"ID":"2","TTL":"5"}})", "about lease 2"},
      {RenewLease{LeaseId{1}}, 200, R"({"result":{"ID":"1","TTL":"5"}})", "'header' is missing"},
      {EndLease{LeaseId{1}}, 200, "{}", "'header' is missing"},
  };
}

TEST(EtcdMessages, AMalformedAnswerIsNamed) {
  std::vector<Malformed> all = malformed_headers();
  for (auto* more : {&malformed_records, &malformed_others}) std::ranges::move(more(), std::back_inserter(all));
  for (const Malformed& each : all) {
    const EtcdAnswer answer = decode_answer(each.request, kPrefix, each.status, each.body);
    const auto* found = std::get_if<Unintelligible>(&answer);
    ASSERT_NE(found, nullptr) << each.body;
    EXPECT_THAT(found->why, HasSubstr(each.why)) << each.body;
    EXPECT_THAT(found->why, HasSubstr(fmt::format("HTTP {}", each.status)));
    EXPECT_LT(found->why.size(), 1000u);
  }
}

TEST(EtcdMessages, ATokenGoesIntoAHeaderLine) {
  const auto token = decode_token(200, R"({"header":{},"token":"abc.12"})");
  ASSERT_TRUE(std::holds_alternative<EtcdToken>(token));
  EXPECT_EQ(std::get<EtcdToken>(token).text, "abc.12");
  for (const char* body : {"{}", R"({"token":""})", R"({"token":"a\r\nHost: b"})", R"({"token":5})"})
    EXPECT_TRUE(std::holds_alternative<Unintelligible>(decode_token(200, body))) << body;
  EXPECT_TRUE(std::holds_alternative<EtcdRefusal>(decode_token(400, R"({"error":"failed","code":3})")));
}

}  // namespace
}  // namespace vmem::cluster
