// The key of a published region: proves that bytes are those of a page, as published. Who publishes
// the region makes it; it stands in the region's record.
//
// Thread: any. Throws std::bad_alloc on lack of memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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

  // The tag that these bytes have if they are the page's.
  rdma::PageAead::Tag tag_of(rdma::ConstBytes bytes, const SharedPage& page) const;
  // A region's pages never change, so each page's number has one content under the key, and a page
  // one tag. It is made once, by the publisher; who fetches a page remembers the tag that proved
  // it. So bytes that were damaged later get no tag that fits them.
  rdma::PageAead::Tag tag(rdma::ConstBytes bytes, const SharedPage& page) const;
  std::optional<rdma::PageAead::Tag> known_tag(std::uint32_t page) const;
  // Whether these are the page's bytes.
  bool proves(rdma::Bytes bytes, const SharedPage& page, const rdma::PageAead::Tag& tag) const;

 private:
  // Tags of pages, by index: 16 bytes and a bit for each page up to the last one known.
  class Tags;
  RegionKey(rdma::KeyMemory key, std::unique_ptr<rdma::PageAead> aead);

  rdma::KeyMemory key_;
  std::unique_ptr<rdma::PageAead> aead_;
  std::shared_ptr<Tags> tags_;
};

}  // namespace vmem::sharing
