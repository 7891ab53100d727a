#include "cluster/registry/etcd/session.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace vmem::cluster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Kind = HttpFailure::Kind;

constexpr const char* kDone = R"({"header":{"revision":"8"},"succeeded":true})";
constexpr const char* kEmpty = R"({"header":{"revision":"8"}})";
constexpr const char* kToken = R"({"header":{},"token":"token.1"})";
constexpr const char* kOtherToken = R"({"header":{},"token":"token.2"})";
constexpr const char* kInvalidToken =
    R"({"error":"etcdserver: invalid auth token","message":"etcdserver: invalid auth token","code":16})";
constexpr const char* kUnavailable = R"({"error":"etcdserver: leader changed","code":14})";

// The test is the endpoints.
class EtcdSessionTest : public ::testing::Test {
 protected:
  void begin(const std::string& address) {
    auto parsed = parse_etcd_address(address);
    ASSERT_TRUE(parsed) << parsed.error().message;
    session.emplace(*std::move(parsed));
  }
  RequestId post(RegistryRequest request) {
    const RequestId id{++last_id};
    session->post(id, std::move(request));
    return id;
  }
  RequestId post_commit() { return post(Commit{.conditions = {}, .edits = {{.key = "a", .value = "v", .lease = {}}}}); }
  // The next HTTP request.
  HttpRequest sent() {
    session->take_requests(requests);
    if (requests.empty()) {
      ADD_FAILURE() << "nothing was sent";
      return {};
    }
    HttpRequest first = std::move(requests.front());
    requests.erase(requests.begin());
    return first;
  }
  bool quiet() {
    session->take_requests(requests);
    return requests.empty();
  }
  void answer(const HttpRequest& request, const char* body, long status = 200) {
    session->finished({request.id, HttpAnswer{.status = status, .body = body}});
  }
  void fail(const HttpRequest& request, Kind kind, std::string why = "why") {
    session->finished({request.id, HttpFailure{.kind = kind, .why = std::move(why)}});
  }
  Reply replied() {
    std::vector<Reply> replies;
    session->take_replies(replies);
    if (replies.size() == 1) return std::move(replies[0]);
    ADD_FAILURE() << replies.size() << " replies";
    return {};
  }
  Error error() {
    const Reply reply = replied();
    EXPECT_EQ(reply.revision, Revision{});
    if (const auto* error = std::get_if<Error>(&reply.what)) return *error;
    ADD_FAILURE() << "no error";
    return {};
  }

  std::optional<EtcdSession> session;
  std::vector<HttpRequest> requests;
  std::uint64_t last_id = 0;
};

TEST_F(EtcdSessionTest, AnAnswerBecomesTheReplyToItsRequest) {
  begin("etcd://a:1,b:2/c");
  const RequestId read = post(ReadPrefix{""}), commit = post_commit();
  const HttpRequest first = sent(), second = sent();
  EXPECT_EQ(first.url, "http://a:1/v3/kv/range");
  EXPECT_EQ(second.url, "http://a:1/v3/kv/txn");
  EXPECT_EQ(first.token, "");
  answer(second, kDone);
  const Reply done = replied();
  EXPECT_EQ(done.request, commit);
  EXPECT_EQ(done.revision, Revision{8});
  answer(first, kEmpty);
  EXPECT_EQ(replied().request, read);
  EXPECT_TRUE(quiet());
}

TEST_F(EtcdSessionTest, OnlyCommitsAndGrantsAreSentOnce) {
  begin("etcds://a:1/c");
  (void)post_commit();
  (void)post(GrantLease{5});
  (void)post(ReadPrefix{""});
  (void)post(RenewLease{LeaseId{1}});
  (void)post(EndLease{LeaseId{1}});
  const bool once[] = {true, true, false, false, false};
  for (const bool each : once) EXPECT_EQ(sent().once, each);
}

TEST_F(EtcdSessionTest, WhatWasNotSentIsSentToTheNextEndpoint) {
  begin("etcds://a:1,b:2,d:3/c");
  (void)post_commit();
  fail(sent(), Kind::unreachable);
  fail(sent(), Kind::untrusted);
  const HttpRequest third = sent();
  EXPECT_EQ(third.url, "https://d:3/v3/kv/txn");
  answer(third, kDone);
  EXPECT_TRUE(std::get<Committed>(replied().what).done);
}

TEST_F(EtcdSessionTest, ACommitThatMayHaveBeenCarriedOutIsNotSentAgain) {
  begin("etcd://a:1,b:2/c");
  const auto unknown_after = [&](auto end) {
    for (const RegistryRequest& each : {RegistryRequest(Commit{}), RegistryRequest(GrantLease{5})}) {
      (void)post(each);
      const HttpRequest request = sent();
      end(request);
      const Error said = error();
      EXPECT_EQ(said.status, VMEM_ERROR_TIMEOUT);
      EXPECT_THAT(said.message, HasSubstr(request.url.substr(0, 10)));
      EXPECT_THAT(said.message, HasSubstr("may have been carried out"));
      EXPECT_TRUE(quiet());
    }
  };
  unknown_after([&](const HttpRequest& request) { fail(request, Kind::unanswered); });
  unknown_after([&](const HttpRequest& request) { answer(request, "garbage"); });
  unknown_after([&](const HttpRequest& request) { answer(request, kUnavailable, 503); });
}

TEST_F(EtcdSessionTest, OtherRequestsAreTriedOnceAtEachEndpoint) {
  begin("etcd://a:1,b:2,d:3/c");
  for (const RegistryRequest& each : {RegistryRequest(ReadPrefix{"x"}), RegistryRequest(RenewLease{LeaseId{7}}),
                                      RegistryRequest(EndLease{LeaseId{7}})}) {
    (void)post(each);
    fail(sent(), Kind::unanswered, "silent");
    answer(sent(), "garbage");
    answer(sent(), kUnavailable, 503);
    const Error said = error();
    EXPECT_EQ(said.status, VMEM_ERROR_TIMEOUT);
    for (const char* part : {"http://a:1: silent", "http://b:2: answered what etcd does not: HTTP 200, 'garbage'",
                             "http://d:3: etcd answered: etcdserver: leader changed", "check that etcd"})
      EXPECT_THAT(said.message, HasSubstr(part));
    EXPECT_TRUE(quiet());
  }
}

TEST_F(EtcdSessionTest, TheEndpointThatWorksIsKept) {
  begin("etcd://a:1,b:2,d:3/c");
  (void)post(ReadPrefix{""});
  (void)post(ReadPrefix{""});
  const HttpRequest first = sent(), second = sent();
  fail(first, Kind::unanswered);
  // The same failure does not make it skip one that nobody tried.
  fail(second, Kind::unanswered);
  for (int i = 0; i < 2; ++i) {
    const HttpRequest next = sent();
    EXPECT_EQ(next.url, "http://b:2/v3/kv/range");
    answer(next, kEmpty);
    (void)replied();
  }
  (void)post_commit();
  EXPECT_EQ(sent().url, "http://b:2/v3/kv/txn");
}

TEST_F(EtcdSessionTest, ARefusalOfEtcdIsFinal) {
  begin("etcd://a:1,b:2/c");
  const std::pair<const char*, vmem_status> refusals[] = {
      {R"({"error":"etcdserver: requested lease not found","code":5})", VMEM_ERROR_INVALID_VALUE},
      {R"({"error":"etcdserver: duplicate key","code":3})", VMEM_ERROR_INVALID_VALUE},
      {R"({"error":"etcdserver: permission denied","code":7})", VMEM_ERROR_INVALID_OPTION},
      {R"({"error":"etcdserver: mvcc: database space exceeded","code":8})", VMEM_ERROR_OUT_OF_MEMORY},
  };
  for (const auto& [body, status] : refusals) {
    (void)post_commit();
    answer(sent(), body, 400);
    const Error said = error();
    EXPECT_EQ(said.status, status);
    EXPECT_THAT(said.message, HasSubstr("committing 1 edits of 'a': http://a:1: etcd answered: etcdserver: "));
    EXPECT_TRUE(quiet());
  }
}

TEST_F(EtcdSessionTest, ARefusalAfterATryWithoutAnAnswerLeavesTheOutcomeOpen) {
  begin("etcd://me:geheim@a:1,b:2/c");
  (void)post(EndLease{LeaseId{4}});
  answer(sent(), kToken);
  fail(sent(), Kind::unanswered);
  answer(sent(), R"({"error":"etcdserver: permission denied","code":7})", 403);
  EXPECT_EQ(error().status, VMEM_ERROR_TIMEOUT);
  (void)post(EndLease{LeaseId{4}});
  fail(sent(), Kind::unanswered);
  answer(sent(), kInvalidToken, 401);
  answer(sent(), R"({"error":"etcdserver: authentication failed","code":3})", 400);
  EXPECT_EQ(error().status, VMEM_ERROR_TIMEOUT);
}

TEST_F(EtcdSessionTest, ALeaseThatEtcdDoesNotKnowHasEnded) {
  begin("etcd://a:1/c");
  (void)post(EndLease{LeaseId{4}});
  answer(sent(), R"({"error":"etcdserver: requested lease not found","code":5})", 404);
  EXPECT_TRUE(std::holds_alternative<Ended>(replied().what));
}

TEST_F(EtcdSessionTest, OnlyWrongCertificatesAreAWrongOption) {
  begin("etcds://a:1,b:2/c");
  (void)post(ReadPrefix{""});
  fail(sent(), Kind::untrusted, "self-signed");
  fail(sent(), Kind::untrusted);
  const Error said = error();
  EXPECT_EQ(said.status, VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(said.message, HasSubstr("https://a:1: self-signed"));
  EXPECT_THAT(said.message, HasSubstr("check the files of certificates"));
  (void)post(ReadPrefix{""});
  fail(sent(), Kind::untrusted);
  fail(sent(), Kind::unreachable);
  EXPECT_EQ(error().status, VMEM_ERROR_TIMEOUT);
}

TEST_F(EtcdSessionTest, OneTokenServesAllRequests) {
  begin("etcd://me:geheim@a:1,b:2/c");
  (void)post(ReadPrefix{""});
  (void)post_commit();
  const HttpRequest login = sent();
  EXPECT_TRUE(quiet());
  EXPECT_EQ(login.url, "http://a:1/v3/auth/authenticate");
  EXPECT_EQ(login.body, R"({"name":"me","password":"geheim"})");
  EXPECT_EQ(login.token, "");
  answer(login, kToken);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(sent().token, "token.1");
  (void)post(ReadPrefix{""});
  EXPECT_EQ(sent().token, "token.1");
}

TEST_F(EtcdSessionTest, AnInvalidTokenIsRenewedOnce) {
  begin("etcd://me:geheim@a:1/c");
  (void)post(ReadPrefix{""});
  (void)post_commit();
  answer(sent(), kToken);
  const HttpRequest read = sent(), commit = sent();
  answer(read, kInvalidToken, 401);
  const HttpRequest login = sent();
  EXPECT_THAT(login.url, HasSubstr("authenticate"));
  answer(commit, kInvalidToken, 401);
  EXPECT_TRUE(quiet());
  answer(login, kOtherToken);
  for (int i = 0; i < 2; ++i) {
    const HttpRequest again = sent();
    EXPECT_EQ(again.token, "token.2");
    answer(again, kDone);
    (void)replied();
  }
  EXPECT_TRUE(quiet());
}

TEST_F(EtcdSessionTest, TokensThatAreNeverValidAreAnError) {
  begin("etcd://me:geheim@a:1/c");
  (void)post(ReadPrefix{""});
  int logins = 0;
  while (!quiet()) {
    ASSERT_LT(++logins, 10);
    answer(sent(), kToken);
    answer(sent(), kInvalidToken, 401);
  }
  const Error said = error();
  EXPECT_EQ(said.status, VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(said.message, HasSubstr("invalid auth token"));
}

TEST_F(EtcdSessionTest, AWrongPasswordFailsAllThatWait) {
  begin("etcd://me:geheim@a:1,b:2/c");
  (void)post(ReadPrefix{""});
  answer(sent(), R"({"error":"etcdserver: authentication failed, invalid user ID or password: geheim","code":3})", 400);
  const Error said = error();
  EXPECT_EQ(said.status, VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(said.message, HasSubstr("does not accept user 'me'"));
  EXPECT_THAT(said.message, HasSubstr("invalid user ID or password: ***"));
  EXPECT_THAT(said.message, HasSubstr("reading the records"));
  EXPECT_THAT(said.message, Not(HasSubstr("geheim")));
  EXPECT_TRUE(quiet());
  // The next request tries again: the password may have been set meanwhile.
  (void)post(ReadPrefix{""});
  EXPECT_THAT(sent().url, HasSubstr("authenticate"));
}

TEST_F(EtcdSessionTest, ALoginIsTriedAtEachEndpoint) {
  begin("etcd://me:geheim@a:1,b:2/c");
  (void)post_commit();
  fail(sent(), Kind::unanswered);
  const HttpRequest second = sent();
  EXPECT_EQ(second.url, "http://b:2/v3/auth/authenticate");
  answer(second, "garbage geheim");
  const Error said = error();
  EXPECT_EQ(said.status, VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(said.message, HasSubstr("proving to be user 'me'"));
  EXPECT_THAT(said.message, Not(HasSubstr("geheim")));
}

TEST_F(EtcdSessionTest, WhereNobodyAsksForAPasswordRequestsGoWithoutAToken) {
  begin("etcd://me:geheim@a:1/c");
  (void)post(ReadPrefix{""});
  answer(sent(), R"({"error":"etcdserver: authentication is not enabled","code":9})", 400);
  const HttpRequest read = sent();
  EXPECT_EQ(read.token, "");
  answer(read, kEmpty);
  (void)replied();
  // Then it is enabled.
  (void)post(ReadPrefix{""});
  answer(sent(), R"({"error":"etcdserver: user name is empty","code":3})", 400);
  EXPECT_THAT(sent().url, HasSubstr("authenticate"));
}

TEST_F(EtcdSessionTest, WithoutAUserTheErrorAsksForOne) {
  begin("etcd://a:1/c");
  (void)post(ReadPrefix{""});
  answer(sent(), R"({"error":"etcdserver: user name is empty","code":3})", 400);
  const Error said = error();
  EXPECT_EQ(said.status, VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(said.message, HasSubstr("give a user and a password"));
}

TEST_F(EtcdSessionTest, WhatAnotherHostSaysStaysOnOneLine) {
  begin("etcd://a:1/c");
  (void)post_commit();
  answer(sent(), R"({"error":"no\n\u001b[2Jway","code":3})", 400);
  EXPECT_THAT(error().message, HasSubstr("no\\n\\x1b[2Jway"));
}

}  // namespace
}  // namespace vmem::cluster
