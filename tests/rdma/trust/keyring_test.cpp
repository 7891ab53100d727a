#include "rdma/trust/keyring.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "rdma/trust/secret_file.hpp"

namespace vmem::rdma {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::string& path) {
  const auto read = Keyring::open(path);
  return read ? "accepted" : read.error().message;
}
std::string refusal_of(const std::string& text) { return refusal(SecretFile(text).path()); }

TEST(Keyring, ANewSecretIsAccepted) {
  const KeyringRef keyring = SecretFile(SecretFile::line("team-a")).read();
  EXPECT_EQ(keyring->own().name, "team-a");
  EXPECT_EQ(keyring->find("team-a"), &keyring->own());
  EXPECT_EQ(keyring->find("team-b"), nullptr);
}

TEST(Keyring, ASecretsNameSaysWhichTenantItIsOf) {
  const KeyringRef keyring = SecretFile(SecretFile::line("team-a#2024.b") + SecretFile::line("team-a")).read();
  EXPECT_EQ(keyring->own().name, "team-a#2024.b");
  EXPECT_EQ(keyring->own().tenant(), "team-a");
  ASSERT_NE(keyring->find("team-a"), nullptr);
  EXPECT_EQ(keyring->find("team-a")->tenant(), "team-a");
  EXPECT_NE(keyring->find("team-a"), &keyring->own()) << "a peer says which secret it has, not of which tenant";
}

TEST(Keyring, ANameIsOfOneTenantAndOneFurtherWordAtMost) {
  const std::string key = SecretFile::line("a").substr(2);
  for (const std::string_view name : {"a#", "a##2", "a#2#3", "a#b/c", "a/b", "a+#2"})
    EXPECT_THAT(refusal_of(fmt::format("{} {}", name, key)), HasSubstr("line 1: a name has 1 to 64")) << name;
  EXPECT_THAT(refusal_of(fmt::format("#2 {}", key)), HasSubstr("holds no secret")) << "it is a comment";
  EXPECT_THAT(refusal_of(fmt::format("a#{:b>63} {}", "", key)), HasSubstr("a name has 1 to 64"));
  EXPECT_EQ(refusal_of(fmt::format("a#{:b>62} {}", "", key)), "accepted");
  EXPECT_FALSE(make_secret_line(**Crypto::load(), "#2"));
}

TEST(Keyring, NoTwoNewSecretsAreAlike) { EXPECT_NE(SecretFile::line("a"), SecretFile::line("a")); }

TEST(Keyring, TheFirstSecretIsTheNodesOwn) {
  const KeyringRef keyring =
      SecretFile(fmt::format("# tenants\n\n{}{}# the end", SecretFile::line("b"), SecretFile::line("a"))).read();
  EXPECT_EQ(keyring->own().name, "b");
  EXPECT_NE(keyring->find("a"), nullptr);
}

TEST(Keyring, FilesThatOthersMayUseAreRefused) {
  for (const mode_t mode : {0640, 0604, 0620, 0777}) {
    const SecretFile file(SecretFile::line("a"), mode);
    EXPECT_THAT(refusal(file.path()), HasSubstr(fmt::format("mode {:04o}", mode)));
  }
  EXPECT_THAT(refusal("/nowhere"), HasSubstr("/nowhere: No such file"));
  EXPECT_THAT(refusal(::testing::TempDir()), HasSubstr("is not a file"));
}

TEST(Keyring, WhatIsNoSecretIsRefusedWithItsLine) {
  EXPECT_THAT(refusal_of(""), HasSubstr("holds no secret"));
  EXPECT_THAT(refusal_of("# nothing\n"), HasSubstr("holds no secret"));
  EXPECT_THAT(refusal_of("# one\npassword\n"), HasSubstr("line 2: is not NAME KEY"));
  EXPECT_THAT(refusal_of("a b\n"), HasSubstr("line 1: a key is 32 bytes in base64"));
  EXPECT_THAT(refusal_of(fmt::format("a/b {}", SecretFile::line("a").substr(2))), HasSubstr("a name has 1 to 64"));
  EXPECT_THAT(refusal_of(fmt::format("{:a>65} {}", "", SecretFile::line("a").substr(2))),
              HasSubstr("a name has 1 to 64"));
  EXPECT_THAT(refusal_of(SecretFile::line("a") + SecretFile::line("a")),
              HasSubstr("line 2: a second secret named 'a'"));
  EXPECT_THAT(refusal_of(fmt::format("a  {}", SecretFile::line("a").substr(2))), HasSubstr("a key is 32 bytes"));
  EXPECT_THAT(refusal_of(std::string(70000, 'x')), HasSubstr("more than"));
}

TEST(Keyring, WeakKeysAreRefused) {
  EXPECT_THAT(refusal_of(fmt::format("a {:A>43}=\n", "")), HasSubstr("the key is weak"));
  // The same byte of text 32 times.
  EXPECT_THAT(refusal_of("a YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=\n"), HasSubstr("the key is weak"));
}

TEST(Keyring, NoErrorQuotesAKey) {
  const std::string line = SecretFile::line("a");
  const std::string key = line.substr(2, 20);
  EXPECT_THAT(refusal_of(line.substr(2)), ::testing::Not(HasSubstr(key)));
  EXPECT_THAT(refusal_of(fmt::format("? {}", line.substr(2))), ::testing::Not(HasSubstr(key)));
  EXPECT_THAT(refusal_of(fmt::format("a {}", line)), ::testing::Not(HasSubstr(key)));
}

TEST(Keyring, AChangedFileIsReadAgain) {
  const std::string a = SecretFile::line("a"), b = SecretFile::line("b");
  const SecretFile file(a);
  const KeyringRef keyring = file.read();
  const std::uint64_t serial = keyring->own().serial;
  EXPECT_FALSE(keyring->refresh());

  file.write(b + a);
  EXPECT_TRUE(keyring->refresh());
  EXPECT_EQ(keyring->own().name, "b");
  EXPECT_TRUE(keyring->holds(serial)) << "the same key under the same name";

  file.write(b);
  EXPECT_TRUE(keyring->refresh());
  EXPECT_FALSE(keyring->holds(serial));

  file.write(SecretFile::line("b") + a);
  EXPECT_TRUE(keyring->refresh());
  EXPECT_FALSE(keyring->holds(serial)) << "it was taken out in between";
}

TEST(Keyring, AnotherKeyUnderTheSameNameIsAnotherSecret) {
  const SecretFile file(SecretFile::line("a"));
  const KeyringRef keyring = file.read();
  const std::uint64_t serial = keyring->own().serial;
  file.write(SecretFile::line("a") + "# longer\n");
  EXPECT_TRUE(keyring->refresh());
  EXPECT_FALSE(keyring->holds(serial));
}

TEST(Keyring, AFileThatCannotBeUsedLeavesTheSecretsAsTheyAre) {
  const SecretFile file;
  const KeyringRef keyring = file.read();
  const std::uint64_t before = keyring->own().serial;
  file.write("garbage");
  EXPECT_FALSE(keyring->refresh());
  EXPECT_EQ(keyring->own().serial, before);
  file.write(SecretFile::line("later") + "# longer\n");
  EXPECT_TRUE(keyring->refresh());
  EXPECT_EQ(keyring->own().name, "later");
}

}  // namespace
}  // namespace vmem::rdma
