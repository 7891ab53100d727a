// Seals pages, and protects them from the nodes that store them.
//
// Thread: any.
#pragma once

#include <memory>

#include "rdma/lending/remote_tier/page_buffers.hpp"
#include "rdma/lending/remote_tier/page_job.hpp"
#include "rdma/lending/remote_tier/stored_pages.hpp"
#include "rdma/trust/page_aead.hpp"

namespace vmem::rdma {

class PageProtection {
 public:
  // Keeps buffers for that many pages. Errors: INTERNAL.
  static Result<std::unique_ptr<PageProtection>> create(PageAead::Mode mode, std::size_t buffers);

  // Fills in what a store sends and keeps. `before`: what the slot holds.
  // Errors: OUT_OF_MEMORY. Throws std::bad_alloc.
  Status protect(PageJob& job, const StoredPage& before);
  // False if the fetched bytes are not the page's. Throws std::bad_alloc.
  bool recover(const PageJob& job) const { return aead_->recover(job.stored, job.page.identity(), job.proof); }
  // False if the bytes, as a lender stores them, are not those of the store. Does not change them:
  // encrypted ones are compared with the seal only, so an adversary's may pass until recover().
  bool is_intact(Bytes stored, const wire::SealedPage& page, const PageAead::Proof& proof) const {
    return aead_->encrypts() ? page.matches(stored) : aead_->recover(stored, page.identity(), proof);
  }

 private:
  PageProtection(std::unique_ptr<PageAead> aead, std::size_t buffers) : aead_(std::move(aead)), buffers_(buffers) {}

  const std::unique_ptr<PageAead> aead_;
  PageBuffers buffers_;
};

}  // namespace vmem::rdma
