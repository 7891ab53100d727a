// Pages that a lender has changed on purpose: none is taken for the page, also where its checksum is right.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "rdma/remote_fixture.hpp"
#include "rdma/trust/openssl.hpp"
#include "rdma/trust/page_mac.hpp"

namespace vmem::rdma {
namespace {

using tiers::Outcome;
using tiers::PageIdentity;
using tiers::SlotId;

// ---- GMAC ----

TEST(PageMac, IsGmac) {
  // Held against OpenSSL's own GMAC over the page's identity and its bytes.
  std::array<unsigned char, 32> key;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<unsigned char>(i);
  const auto mac = *PageMac::create(key);
  std::vector<std::byte> page(10'000, std::byte{5});
  const PageIdentity identity{{1, 2}, 3, page.size(), 4};
  const PageMac::Proof proof = mac->prove(page, identity);
  EXPECT_EQ(proof.number, 1u);

  const std::array<std::uint64_t, 4> words{std::uint64_t{1} << 32 | 2, 3, page.size(), 4};
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

TEST(PageMac, EveryStoreHasANumberOfItsOwn) {
  const auto mac = *PageMac::create();
  const std::vector<std::byte> page(4096, std::byte{5});
  const PageIdentity identity{{1, 2}, 3, page.size(), 4};
  const auto first = mac->prove(page, identity), second = mac->prove(page, identity);
  EXPECT_NE(first.number, second.number);
  EXPECT_NE(first.tag, second.tag) << "of the same bytes";
  EXPECT_TRUE(mac->holds(page, identity, first));
  EXPECT_TRUE(mac->holds(page, identity, second));
  EXPECT_FALSE(mac->holds(page, identity, {second.number, first.tag}));
  EXPECT_FALSE((*PageMac::create())->holds(page, identity, first)) << "of another process";
  EXPECT_FALSE(mac->holds(page, identity, {}));
}

// ---- a forged page with the right checksum ----

// XXH3 adds, for every 64 bytes, each word, and the product of the halves of each word with its part of a
// secret that is no secret. Where one half is zero the product is: two such words sum up to what is wanted.
class Forger {
 public:
  explicit Forger(const PageIdentity& identity) {
    const std::array<std::uint64_t, 4> words{std::uint64_t{identity.page.home} << 32 | identity.page.granule,
                                             identity.version, identity.bytes, identity.tenant};
    const std::uint64_t seed = XXH3_64bits(words.data(), sizeof(words));
    for (std::size_t i = 0; i < kSecretBytes; i += 16) {
      put(secret_.data() + i, get(XXH3_kSecret + i) + seed);
      put(secret_.data() + i + 8, get(XXH3_kSecret + i + 8) - seed);
    }
  }
  // Changes byte `at` of the page, and the 128 bytes after its stripe, so that the checksum stays.
  void change(Bytes page, std::size_t at) const {
    const std::size_t block = at / kBlockBytes * kBlockBytes;
    const std::size_t stripe = std::min<std::size_t>((at - block) / kStripeBytes, kStripes - 3);
    auto* const bytes = reinterpret_cast<unsigned char*>(page.data()) + block;
    const auto before = sums(bytes, stripe, 3);
    bytes[stripe * kStripeBytes + at % kStripeBytes] ^= 0x55;
    const auto forged = sums(bytes, stripe, 1);
    for (std::size_t lane = 0; lane < 8; ++lane) {
      // What the other lanes' words add to this lane's sum.
      const std::uint64_t wanted = before[lane ^ 1] - forged[lane ^ 1];
      const std::uint64_t key1 = key(stripe + 1, lane), key2 = key(stripe + 2, lane);
      const std::uint64_t low1 = key1 & 0xffffffff, high2 = key2 >> 32 << 32;
      const std::uint64_t second = high2 | ((wanted - low1) & 0xffffffff);
      const std::uint64_t first = wanted - second;  // its low half is that of key1
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
  const auto seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 random(seed);
  const auto mac = *PageMac::create();
  std::vector<std::byte> page(64 << 10);
  for (std::byte& byte : page) byte = static_cast<std::byte>(random());
  const std::size_t count = asked("VMEM_FORGED_PAGES", 2000);
  std::size_t same_checksum = 0, accepted = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const PageIdentity identity{{1, static_cast<std::uint32_t>(i)}, i, page.size(), 4};
    const auto checksum = tiers::seal(page, identity);
    const auto proof = mac->prove(page, identity);
    std::vector<std::byte> forged = page;
    Forger(identity).change(forged, random() % (forged.size() - 2 * 1024));
    ASSERT_NE(forged, page);
    same_checksum += tiers::seal(forged, identity) == checksum ? 1 : 0;
    accepted += mac->holds(forged, identity, proof) ? 1 : 0;
    ASSERT_TRUE(mac->holds(page, identity, proof));
  }
  EXPECT_EQ(same_checksum, count) << "the forgeries are what an attacker would send";
  EXPECT_EQ(accepted, 0u);
}

// What lies in a lender's memory is edited: one bit, a forgery with the right checksum, another page, an older
// content of the same page and version.
TEST(ForgedPage, NoneIsTakenFromALender) {
  SteppedRemote remote(1);
  remote.start_tier();
  const auto seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 random(seed);
  const std::size_t count = asked("VMEM_FORGED_PAGES", 40);
  std::size_t refused = 0;
  const SlotId slot = remote.slot();
  constexpr std::uint64_t kVersion = 7;
  const PageIdentity identity{{100, 1}, kVersion, kPage, 0};
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

}  // namespace
}  // namespace vmem::rdma
