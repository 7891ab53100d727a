#include <nlohmann/json.hpp>

#include "cluster/registry/etcd/http_client.hpp"
#include "cluster/registry/etcd/messages.hpp"
#include "cluster/registry/etcd_client.hpp"

namespace vmem::cluster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr std::uint64_t kTryUs = 30'000'000;
constexpr const char* kPassword = "geheim:@/%";
constexpr const char* kEncoded = "geheim%3a%40%2f%25";

// ---- users ----

void post(const EtcdServers& servers, const std::string& path, const Json& body) {
  auto curl = load_curl();
  ASSERT_TRUE(curl);
  auto http = HttpClient::create({.curl = *curl, .tls = {}, .limit_us = 30'000'000, .connect_limit_us = 30'000'000});
  ASSERT_TRUE(http);
  (*http)->start({.id = {},
                  .url = fmt::format("http://{}/v3/{}", servers.endpoint(0), path),
                  .body = body.dump(),
                  .token = "",
                  .once = true});
  std::vector<HttpResult> results;
  while (results.empty()) (*http)->run(results, -1, 1000);
  const auto* answer = std::get_if<HttpAnswer>(&results[0].what);
  ASSERT_NE(answer, nullptr);
  ASSERT_EQ(answer->status, 200) << answer->body;
}

// A server with the user vmem, who may use the cluster "test" only.
std::unique_ptr<EtcdServers> start_with_users(const EtcdOptions& options = {}) {
  auto servers = start_etcd(1, options);
  for (const char* name : {"root", "vmem"}) {
    post(*servers, "auth/user/add", {{"name", name}, {"password", kPassword}});
    post(*servers, "auth/role/add", {{"name", name}});
    post(*servers, "auth/user/grant", {{"user", name}, {"role", name}});
  }
  const EtcdRequest range = encode_request(ReadPrefix{""}, key_prefix_of("test"));
  Json permission = Json::parse(range.body);
  permission["permType"] = "READWRITE";
  post(*servers, "auth/role/grant", {{"name", "vmem"}, {"perm", permission}});
  post(*servers, "auth/enable", Json::object());
  return servers;
}

std::string with_user(const EtcdServers& servers, const std::string& user, const std::string& cluster = "test") {
  return fmt::format("etcd://{}@{}/{}", user, servers.all_endpoints(), cluster);
}

TEST(EtcdUsers, TheRightPasswordIsAccepted) {
  const auto servers = start_with_users();
  EtcdClient client(with_user(*servers, fmt::format("vmem:{}", kEncoded)));
  EXPECT_TRUE(client.asker().commit({put("a", "")}, {absent("a")}));
  EXPECT_TRUE(client.asker().commit({}, {absent("b")}));
  EXPECT_THAT(client.asker().keys(), ::testing::ElementsAre("a"));
  const LeaseId lease = client.asker().grant();
  EXPECT_TRUE(client.asker().commit({put("b", "", lease)}));
  EXPECT_GT(client.asker().renew(lease), 0u);
  (void)client.asker().get<Ended>(EndLease{lease});
  EXPECT_THAT(client.asker().keys(), ::testing::ElementsAre("a"));
}

TEST(EtcdUsers, AWrongOneIsRefusedInWords) {
  const auto servers = start_with_users();
  const std::pair<std::string, const char*> wrong[] = {
      {with_user(*servers, "vmem:falsch"), "does not accept user 'vmem' with the password given"},
      {with_user(*servers, fmt::format("nobody:{}", kEncoded)), "does not accept user 'nobody'"},
      {address_of(*servers), "give a user and a password"},
      {with_user(*servers, fmt::format("vmem:{}", kEncoded), "other"), "permission denied"},
  };
  for (const auto& [address, why] : wrong) {
    EtcdClient client(address);
    const Error error = client.error(ReadPrefix{""});
    EXPECT_EQ(error.status, VMEM_ERROR_INVALID_OPTION) << error.message;
    EXPECT_THAT(error.message, HasSubstr(why));
    EXPECT_THAT(error.message, Not(HasSubstr("geheim")));
    EXPECT_THAT(error.message, Not(HasSubstr("falsch")));
  }
}

TEST(EtcdUsers, ATokenThatEtcdForgotIsRenewed) {
  const auto servers = start_with_users();
  EtcdClient client(with_user(*servers, fmt::format("vmem:{}", kEncoded)));
  ASSERT_TRUE(client.asker().commit({put("a", "")}));
  // Tokens are kept in the server's memory only.
  (*servers)[0].kill();
  (*servers)[0].start();
  EXPECT_EQ(std::get<Read>(client.insist(ReadPrefix{""}).what).records.size(), 1u);
  EXPECT_TRUE(client.asker().commit({put("b", "")}));
}

TEST(EtcdUsers, WhereUsersAreOffTheOneInTheAddressIsNoError) {
  const auto servers = start_etcd(1);
  EtcdClient client(with_user(*servers, "vmem:any"));
  EXPECT_TRUE(client.asker().commit({put("a", "")}));
}

// ---- TLS ----

class Certificates {
 public:
  Certificates() {
    run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=authority "
        "-keyout {0}/ca.key -out {0}/ca.crt");
    run("openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=node "
        "-addext subjectAltName=IP:127.0.0.1 -keyout {0}/node.key -out {0}/request");
    run("openssl x509 -req -in {0}/request -copy_extensions copyall -CA {0}/ca.crt -CAkey {0}/ca.key "
        "-CAcreateserial -days 1 -out {0}/node.crt");
  }
  std::string file(const char* name) const { return folder_.file(name); }
  TlsFiles files() const { return {.authorities = file("ca.crt"), .certificate = "", .key = ""}; }
  TlsFiles files_with_key() const {
    return {.authorities = file("ca.crt"), .certificate = file("node.crt"), .key = file("node.key")};
  }
  EtcdOptions options() const {
    return {.more = {"--cert-file", file("node.crt"), "--key-file", file("node.key"), "--trusted-ca-file",
                     file("ca.crt"), "--client-cert-auth"},
            .tls = true};
  }

 private:
  void run(const std::string& command) const {
    const std::string line = fmt::format(fmt::runtime(command), file("")) + " 2>/dev/null";
    EXPECT_EQ(std::system(line.c_str()), 0) << line;
  }
  TemporaryFolder folder_;
};

class EtcdTls : public ::testing::Test {
 protected:
  // Not start_etcd, whose clients have no certificates.
  void SetUp() override {
    for (int i = 0; i < 5; ++i) {
      servers = std::make_unique<EtcdServers>(1, certificates.options());
      EtcdClient client(address(), 1'000'000, certificates.files_with_key());
      const auto end = std::chrono::steady_clock::now() + kPatience;
      while (servers->usable() && std::chrono::steady_clock::now() < end) {
        if (std::holds_alternative<Read>(client.asker().ask(ReadPrefix{""}).what)) return;
        client.pass();
      }
    }
    FAIL() << "etcd does not start";
  }
  std::string address() const { return fmt::format("etcds://{}/test", servers->endpoint(0)); }

  Certificates certificates;
  std::unique_ptr<EtcdServers> servers;
};

TEST_F(EtcdTls, ClientAndServerProveWhoTheyAre) {
  EtcdClient client(address(), kTryUs, certificates.files_with_key());
  EXPECT_TRUE(client.asker().commit({put("a", "")}));
  EXPECT_THAT(client.asker().keys(), ::testing::ElementsAre("a"));
}

TEST_F(EtcdTls, AServerOfAnotherAuthorityIsNotTrusted) {
  const Certificates others;
  for (const TlsFiles& files : {others.files(), TlsFiles{}}) {
    EtcdClient client(address(), kTryUs, files);
    for (const RegistryRequest& each : {RegistryRequest(ReadPrefix{""}), RegistryRequest(GrantLease{5})}) {
      const Error error = client.error(each);
      EXPECT_EQ(error.status, VMEM_ERROR_INVALID_OPTION);
      EXPECT_THAT(error.message, HasSubstr("https://" + servers->endpoint(0)));
      EXPECT_THAT(error.message, HasSubstr("check the files of certificates"));
    }
  }
}

TEST_F(EtcdTls, AServerOfAnotherNameIsNotTrusted) {
  std::string other = address();
  other.replace(other.find("127.0.0.1"), 9, "localhost");
  EtcdClient client(other, kTryUs, certificates.files_with_key());
  EXPECT_EQ(client.error(ReadPrefix{""}).status, VMEM_ERROR_INVALID_OPTION);
}

TEST_F(EtcdTls, WithoutACertificateTheClientIsNotServed) {
  EtcdClient client(address(), kTryUs, certificates.files());
  const Error error = client.error(ReadPrefix{""});
  EXPECT_THAT(error.message, HasSubstr("certificate"));
}

TEST_F(EtcdTls, APlainClientIsNotServed) {
  EtcdClient client(fmt::format("etcd://{}/test", servers->endpoint(0)));
  EXPECT_EQ(client.error(ReadPrefix{""}).status, VMEM_ERROR_TIMEOUT);
}

}  // namespace
}  // namespace vmem::cluster
