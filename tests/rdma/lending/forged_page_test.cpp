// Pages changed by a malicious lender: none is accepted, even with a matching checksum.
#include <gmock/gmock.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "campaign/seeds.hpp"
#include "rdma/lending/remote_fixture.hpp"
#include "rdma/trust/openssl.hpp"
#include "rdma/trust/page_aead.hpp"

namespace vmem::rdma {
namespace {

using tiers::Outcome;
using tiers::PageIdentity;
using tiers::SlotId;

constexpr pagetable::PageKey kKey{pagetable::Serial{1}, 2};

// ---- GMAC ----

TEST(PageAead, WithoutEncryptionIsGmac) {
  // Compares with OpenSSL's GMAC over the page's identity and bytes.
  std::array<unsigned char, 32> key;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<unsigned char>(i);
  const auto mac = *PageAead::create(PageAead::Mode::authenticate, key);
  std::vector<std::byte> page(10'000, std::byte{5});
  const PageIdentity identity{kKey, 3, page.size(), 4};
  const PageAead::Proof proof = mac->protect(page, identity, {});
  EXPECT_EQ(proof.number, 1u);

  const std::array<std::uint64_t, 5> words{1, 2, 3, page.size(), 4};
  std::vector<unsigned char> message(sizeof(words) + page.size());
  std::memcpy(message.data(), words.data(), sizeof(words));
  std::memcpy(message.data() + sizeof(words), page.data(), page.size());
  std::array<unsigned char, 12> nonce{1};
  const std::unique_ptr<EVP_MAC, OpenSslDelete<EVP_MAC_free>> gmac(EVP_MAC_fetch(*openssl(), "GMAC", nullptr));
  const std::unique_ptr<EVP_MAC_CTX, OpenSslDelete<EVP_MAC_CTX_free>> context(EVP_MAC_CTX_new(gmac.get()));
  char cipher[] = "AES-256-GCM";
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_CIPHER, cipher, 0),
                                   OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_IV, nonce.data(), nonce.size()),
                                   OSSL_PARAM_construct_end()};
  std::array<unsigned char, 16> tag{};
  std::size_t size = 0;
  ASSERT_EQ(EVP_MAC_init(context.get(), key.data(), key.size(), parameters), 1);
  ASSERT_EQ(EVP_MAC_update(context.get(), message.data(), message.size()), 1);
  ASSERT_EQ(EVP_MAC_final(context.get(), tag.data(), &size, tag.size()), 1);
  EXPECT_EQ(proof.tag, tag);
}

TEST(PageAead, EveryStoreHasANumberOfItsOwn) {
  const auto mac = *PageAead::create(PageAead::Mode::authenticate);
  const std::vector<std::byte> page(4096, std::byte{5});
  const PageIdentity identity{kKey, 3, page.size(), 4};
  const auto first = mac->protect(page, identity, {}), second = mac->protect(page, identity, {});
  EXPECT_NE(first.number, second.number);
  EXPECT_NE(first.tag, second.tag) << "of the same bytes";
  EXPECT_TRUE(mac->protect_again(page, identity, first, {}));
  EXPECT_TRUE(mac->protect_again(page, identity, second, {}));
  EXPECT_FALSE(mac->protect_again(page, identity, {second.number, first.tag}, {}));
  EXPECT_FALSE((*PageAead::create(PageAead::Mode::authenticate))->protect_again(page, identity, first, {}))
      << "of another process";
  EXPECT_FALSE(mac->protect_again(page, identity, {}, {}));
}

TEST(PageAead, EncryptsAndRecoversOnlyWhatItStored) {
  const auto aead = *PageAead::create(PageAead::Mode::encrypt);
  const std::vector<std::byte> page(10'000, std::byte{5});
  const PageIdentity identity{kKey, 3, page.size(), 4};
  std::vector<std::byte> first(page.size()), second(page.size()), again(page.size());
  const auto proof = aead->protect(page, identity, first);
  const auto other = aead->protect(page, identity, second);
  EXPECT_NE(first, second) << "of the same bytes";
  EXPECT_EQ(std::ranges::search(first, std::vector(8, std::byte{5})).size(), 0u);
  EXPECT_TRUE(aead->protect_again(page, identity, proof, again));
  EXPECT_EQ(again, first);
  EXPECT_FALSE(aead->protect_again(std::vector(page.size(), std::byte{6}), identity, proof, again));

  const auto recovers = [&](std::vector<std::byte> stored, const PageIdentity& of, const PageAead::Proof& with) {
    return aead->recover(stored, of, with) && stored == page;
  };
  EXPECT_TRUE(recovers(first, identity, proof));
  EXPECT_TRUE(recovers(second, identity, other));
  EXPECT_FALSE(recovers(second, identity, proof));
  EXPECT_FALSE(recovers(first, {{kKey.serial, 3}, 3, page.size(), 4}, proof));
  EXPECT_FALSE(recovers(first, identity, {}));
  first[100] ^= std::byte{1};
  EXPECT_FALSE(recovers(first, identity, proof));
}

TEST(PageAead, EncryptsAsGcmDoes) {
  // Decrypts with OpenSSL, using the documented key, nonce and page identity.
  std::array<unsigned char, 32> key;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<unsigned char>(i);
  const auto aead = *PageAead::create(PageAead::Mode::encrypt, key);
  std::vector<std::byte> page(1000, std::byte{5}), stored(page.size());
  const PageIdentity identity{kKey, 3, page.size(), 4};
  const PageAead::Proof proof = aead->protect(page, identity, stored);
  const std::array<std::uint64_t, 5> words{1, 2, 3, page.size(), 4};
  const std::array<unsigned char, 12> nonce{1};
  const std::unique_ptr<EVP_CIPHER_CTX, OpenSslDelete<EVP_CIPHER_CTX_free>> context(EVP_CIPHER_CTX_new());
  std::vector<unsigned char> plain(page.size());
  auto tag = proof.tag;
  int size = 0;
  ASSERT_EQ(EVP_DecryptInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, key.data(), nonce.data()), 1);
  ASSERT_EQ(EVP_DecryptUpdate(context.get(), nullptr, &size, reinterpret_cast<const unsigned char*>(words.data()),
                              sizeof(words)),
            1);
  ASSERT_EQ(EVP_DecryptUpdate(context.get(), plain.data(), &size, reinterpret_cast<unsigned char*>(stored.data()),
                              static_cast<int>(stored.size())),
            1);
  ASSERT_EQ(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_SET_TAG, 16, tag.data()), 1);
  ASSERT_EQ(EVP_DecryptFinal_ex(context.get(), plain.data(), &size), 1);
  EXPECT_EQ(std::memcmp(plain.data(), page.data(), page.size()), 0);
}

// ---- a forged page with the right checksum ----

// For every 64 bytes, XXH3 adds each word, and the product of the halves of each word with its part
// of a public secret. If one half is zero, so is the product: two such words can add up to any sum.
class Forger {
 public:
  explicit Forger(const PageIdentity& identity) {
    const auto words = tiers::words_of(identity);
    const std::uint64_t seed = XXH3_64bits(words.data(), sizeof(words));
    for (std::size_t i = 0; i < kSecretBytes; i += 16) {
      put(secret_.data() + i, get(XXH3_kSecret + i) + seed);
      put(secret_.data() + i + 8, get(XXH3_kSecret + i + 8) - seed);
    }
  }
  // Changes byte `at` of the page and the 128 bytes after its stripe, and keeps the checksum.
  void change(Bytes page, std::size_t at) const {
    const std::size_t block = at / kBlockBytes * kBlockBytes;
    const std::size_t stripe = std::min<std::size_t>((at - block) / kStripeBytes, kStripes - 3);
    auto* const bytes = reinterpret_cast<unsigned char*>(page.data()) + block;
    const auto before = sums(bytes, stripe, 3);
    bytes[stripe * kStripeBytes + at % kStripeBytes] ^= 0x55;
    const auto forged = sums(bytes, stripe, 1);
    for (std::size_t lane = 0; lane < 8; ++lane) {
      // The sum of the other lanes' words in this lane.
      const std::uint64_t wanted = before[lane ^ 1] - forged[lane ^ 1];
      const std::uint64_t key1 = key(stripe + 1, lane), key2 = key(stripe + 2, lane);
      const std::uint64_t low1 = key1 & 0xffffffff, high2 = key2 >> 32 << 32;
      const std::uint64_t second = high2 | ((wanted - low1) & 0xffffffff);
      // Its low half is that of key1.
      const std::uint64_t first = wanted - second;
      put(bytes + (stripe + 1) * kStripeBytes + lane * 8, first);
      put(bytes + (stripe + 2) * kStripeBytes + lane * 8, second);
    }
  }

 private:
  static constexpr std::size_t kSecretBytes = 192, kStripeBytes = 64, kStripes = 16, kBlockBytes = 1024;
  static std::uint64_t get(const unsigned char* from) {
    std::uint64_t value = 0;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  static void put(unsigned char* to, std::uint64_t value) { std::memcpy(to, &value, sizeof(value)); }
  std::uint64_t key(std::size_t stripe, std::size_t lane) const { return get(secret_.data() + stripe * 8 + lane * 8); }
  std::array<std::uint64_t, 8> sums(const unsigned char* block, std::size_t first, std::size_t count) const {
    std::array<std::uint64_t, 8> sums{};
    for (std::size_t stripe = first; stripe < first + count; ++stripe) {
      for (std::size_t lane = 0; lane < 8; ++lane) {
        const std::uint64_t value = get(block + stripe * kStripeBytes + lane * 8);
        const std::uint64_t mixed = value ^ key(stripe, lane);
        sums[lane ^ 1] += value;
        sums[lane] += (mixed & 0xffffffff) * (mixed >> 32);
      }
    }
    return sums;
  }
  std::array<unsigned char, kSecretBytes> secret_;
};

std::size_t asked(const char* variable, std::size_t otherwise) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? otherwise : static_cast<std::size_t>(std::atoll(value));
}

TEST(ForgedPage, AChecksumIsNoProofAndAMacIs) {
  std::mt19937_64 random(test::printed_seed());
  const auto mac = *PageAead::create(PageAead::Mode::authenticate);
  std::vector<std::byte> page(64 << 10);
  for (std::byte& byte : page) byte = static_cast<std::byte>(random());
  const std::size_t count = asked("VMEM_TEST_FORGED_PAGES", 2000);
  std::size_t same_checksum = 0, accepted = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const PageIdentity identity{{pagetable::Serial{1}, static_cast<std::uint32_t>(i)}, i, page.size(), 4};
    const auto checksum = tiers::seal(page, identity);
    const auto proof = mac->protect(page, identity, {});
    std::vector<std::byte> forged = page;
    Forger(identity).change(forged, random() % (forged.size() - 2 * 1024));
    ASSERT_NE(forged, page);
    same_checksum += tiers::seal(forged, identity) == checksum ? 1 : 0;
    accepted += mac->recover(forged, identity, proof) ? 1 : 0;
    ASSERT_TRUE(mac->protect_again(page, identity, proof, {}));
  }
  EXPECT_EQ(same_checksum, count) << "the forgeries are what an attacker would send";
  EXPECT_EQ(accepted, 0u);
}

// Edits the bytes in a lender's memory: one bit, a forgery with the same checksum, another page,
// and an older content of the same page and version.
class ForgedPages : public ::testing::TestWithParam<PageAead::Mode> {};

INSTANTIATE_TEST_SUITE_P(ForgedPage, ForgedPages,
                         ::testing::Values(PageAead::Mode::authenticate, PageAead::Mode::encrypt),
                         [](const auto& each) {
                           return each.param == PageAead::Mode::encrypt ? "Encrypted" : "Authenticated";
                         });

TEST_P(ForgedPages, NoneIsTakenFromALender) {
  SteppedRemote remote(1);
  remote.protection = GetParam();
  remote.start_tier();
  std::mt19937_64 random(test::printed_seed());
  const std::size_t count = asked("VMEM_TEST_FORGED_PAGES", 40);
  std::size_t refused = 0;
  const SlotId slot = remote.slot();
  constexpr std::uint64_t kVersion = 7;
  const PageIdentity identity{{pagetable::Serial{100}, 1}, kVersion, kPage, 0};
  const auto store = [&](std::uint64_t content) {
    remote.fill(0, 1, content);
    return remote.wait_for(remote.submit(tiers::Direction::store, slot, 0, 1, kVersion)).outcome;
  };
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(store(2 * i), Outcome::done);
    const Bytes there = remote.lenders[0]->writable(kPage);
    const std::vector<std::byte> older(there.begin(), there.end());
    ASSERT_EQ(store(2 * i + 1), Outcome::done) << "the same version, stored again";
    switch (i % 4) {
      case 0:
        there[random() % kPage] ^= std::byte{1} << static_cast<int>(random() % 8);
        break;
      case 1:
        Forger(identity).change(there, random() % (kPage - 2 * 1024));
        break;
      case 2:
        std::ranges::reverse(there);
        break;
      case 3:
        std::ranges::copy(older, there.begin());
        break;
    }
    refused += remote.load(slot, 1, kVersion).outcome == Outcome::lost ? 1 : 0;
  }
  EXPECT_EQ(refused, count);
}

// An attacker who chooses a page's content can choose two with the same checksum. The second must
// be stored, too.
TEST_P(ForgedPages, OneWithTheChecksumOfWhatIsStoredIsStoredAsWell) {
  SteppedRemote remote(1);
  remote.protection = GetParam();
  remote.start_tier();
  const SlotId slot = remote.slot();
  constexpr std::uint64_t kVersion = 7;
  ASSERT_EQ(remote.store(slot, 1, kVersion).outcome, Outcome::done);
  remote.fill(0, 1, kVersion);
  const Bytes page(remote.memory(0), kPage);
  Forger({{pagetable::Serial{100}, 1}, kVersion, kPage, 0}).change(page, 3000);
  const std::vector<std::byte> changed(page.begin(), page.end());
  const auto stored = remote.wait_for(remote.submit(tiers::Direction::store, slot, 0, 1, kVersion, true));
  ASSERT_EQ(stored.outcome, Outcome::done);
  EXPECT_TRUE(stored.changed);
  ASSERT_EQ(remote.load(slot, 1, kVersion).outcome, Outcome::done);
  EXPECT_EQ(std::memcmp(remote.memory(1), changed.data(), kPage), 0);
}

TEST(EncryptedPages, ALenderSeesNeitherTheirBytesNorTheirChecksum) {
  SteppedRemote remote(1);
  remote.protection = PageAead::Mode::encrypt;
  remote.start_tier();
  const SlotId slot = remote.slot();
  ASSERT_EQ(remote.store(slot, 1, 7).outcome, Outcome::done);
  remote.fill(0, 1, 7);
  const Bytes there = remote.lenders[0]->writable(kPage);
  std::size_t same = 0;
  for (std::size_t at = 0; at < kPage; at += 8) same += std::memcmp(&there[at], remote.memory(0) + at, 8) == 0 ? 1 : 0;
  EXPECT_EQ(same, 0u);
  // The lender's checksum covers the bytes it keeps, so it detects its own damage before the owner
  // does.
  there[5] ^= std::byte{1};
  EXPECT_EQ(remote.load(slot, 1, 7).outcome, Outcome::lost);
  EXPECT_GT(remote.lenders[0]->service->statistics().damaged, 0u);
}

TEST(EncryptedPages, AReplicaThatWasLostIsMadeOfTheSameBytes) {
  SteppedRemote remote(2, 2);
  remote.protection = PageAead::Mode::encrypt;
  remote.start_tier();
  const SlotId slot = remote.slot();
  ASSERT_EQ(remote.store(slot, 1, 7).outcome, Outcome::done);
  remote.start_lender(1);
  remote.until([&] { return remote.connected() == 2 && remote.tier->usage().ready_bytes > 0; });
  const auto stored = remote.store(slot, 1, 7, true);
  ASSERT_EQ(stored.outcome, Outcome::done);
  EXPECT_FALSE(stored.changed);
  EXPECT_TRUE(remote.loads(slot, 1, 7));
  remote.lenders[1].reset();
  EXPECT_TRUE(remote.loads(slot, 1, 7)) << "from the copy that was made again";
}

}  // namespace
}  // namespace vmem::rdma
