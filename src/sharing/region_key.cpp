#include "sharing/region_key.hpp"

#include <openssl/rand.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "rdma/trust/openssl.hpp"

namespace vmem::sharing {
namespace {

std::uint64_t number_of(const SharedPage& page) { return std::uint64_t{page.page} + 1; }

}  // namespace

class RegionKey::Tags {
 public:
  std::optional<rdma::PageAead::Tag> find(std::uint32_t page) const {
    const std::lock_guard lock(mutex_);
    if (page >= known_.size() || !known_[page]) return std::nullopt;
    return tags_[page];
  }
  void add(std::uint32_t page, const rdma::PageAead::Tag& tag) {
    const std::lock_guard lock(mutex_);
    if (page >= tags_.size()) {
      tags_.resize(page + std::size_t{1});
      known_.resize(page + std::size_t{1});
    }
    tags_[page] = tag;
    known_[page] = true;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<rdma::PageAead::Tag> tags_;
  std::vector<bool> known_;
};

RegionKey::RegionKey(rdma::KeyMemory key, std::unique_ptr<rdma::PageAead> aead)
    : key_(std::move(key)), aead_(std::move(aead)), tags_(std::make_shared<Tags>()) {}

Result<RegionKey> RegionKey::create() {
  VMEM_ASSIGN(OSSL_LIB_CTX* const library, rdma::openssl());
  rdma::KeyMemory key(kBytes);
  if (RAND_priv_bytes_ex(library, key.bytes().data(), kBytes, 0) != 1)
    return rdma::openssl_failure("a key for a region");
  return of(std::span<const unsigned char, kBytes>(key.bytes()));
}

Result<RegionKey> RegionKey::of(std::span<const unsigned char, kBytes> key) {
  rdma::KeyMemory kept(kBytes);
  std::ranges::copy(key, kept.bytes().begin());
  VMEM_ASSIGN(auto aead, rdma::PageAead::create(rdma::PageAead::Mode::authenticate, key));
  return RegionKey(std::move(kept), std::move(aead));
}

rdma::PageAead::Tag RegionKey::tag_of(rdma::ConstBytes bytes, const SharedPage& page) const {
  return aead_->prove(bytes, page.identity(), number_of(page)).tag;
}

rdma::PageAead::Tag RegionKey::tag(rdma::ConstBytes bytes, const SharedPage& page) const {
  if (const auto known = known_tag(page.page)) return *known;
  const rdma::PageAead::Tag tag = tag_of(bytes, page);
  tags_->add(page.page, tag);
  return tag;
}

std::optional<rdma::PageAead::Tag> RegionKey::known_tag(std::uint32_t page) const { return tags_->find(page); }

bool RegionKey::proves(rdma::Bytes bytes, const SharedPage& page, const rdma::PageAead::Tag& tag) const {
  if (!aead_->recover(bytes, page.identity(), {number_of(page), tag})) return false;
  tags_->add(page.page, tag);
  return true;
}

}  // namespace vmem::sharing
