#include "sharing/region_key.hpp"

#include <openssl/rand.h>

#include <algorithm>

#include "rdma/trust/openssl.hpp"

namespace vmem::sharing {
namespace {

std::uint64_t number_of(const SharedPage& page) { return std::uint64_t{page.page} + 1; }

}  // namespace

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

rdma::PageAead::Tag RegionKey::tag(rdma::ConstBytes bytes, const SharedPage& page) const {
  return aead_->prove(bytes, page.identity(), number_of(page)).tag;
}

bool RegionKey::proves(rdma::Bytes bytes, const SharedPage& page, const rdma::PageAead::Tag& tag) const {
  return aead_->recover(bytes, page.identity(), {number_of(page), tag});
}

}  // namespace vmem::sharing
