// The key of a published region: proves that bytes are those of a page, as published. Who publishes
// the region makes it; it stands in the region's record.
//
// Thread: any. Throws std::bad_alloc on lack of memory.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "rdma/trust/page_aead.hpp"
#include "sharing/shared_page.hpp"

namespace vmem::sharing {

class RegionKey {
 public:
  static constexpr std::size_t kBytes = rdma::PageAead::kKeyBytes;

  // Errors: INTERNAL, if OpenSSL has no random bytes or no AES-GCM.
  static Result<RegionKey> create();
  static Result<RegionKey> of(std::span<const unsigned char, kBytes> key);
  std::span<const unsigned char, kBytes> bytes() const { return std::span<const unsigned char, kBytes>(key_.bytes()); }

  // A region's pages never change, so each page's number has one content under the key.
  rdma::PageAead::Tag tag(rdma::ConstBytes bytes, const SharedPage& page) const;
  // Whether these are the page's bytes.
  bool proves(rdma::Bytes bytes, const SharedPage& page, const rdma::PageAead::Tag& tag) const;

 private:
  RegionKey(rdma::KeyMemory key, std::unique_ptr<rdma::PageAead> aead) : key_(std::move(key)), aead_(std::move(aead)) {}
  rdma::KeyMemory key_;
  std::unique_ptr<rdma::PageAead> aead_;
};

}  // namespace vmem::sharing
