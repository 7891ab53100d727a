#include "rdma/lending/remote_tier/page_protection.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "base/sizes.hpp"

namespace vmem::rdma {

std::string words(const PageJob& job) {
  const std::uint64_t first = std::uint64_t{job.page.granule} * pagetable::kGranuleBytes;
  return fmt::format("the page at {:#x} to {:#x} of the address space, version {}", first, first + job.page.bytes,
                     job.page.version);
}

Result<std::unique_ptr<PageProtection>> PageProtection::create(PageAead::Mode mode, std::size_t buffers) {
  VMEM_ASSIGN(auto aead, PageAead::create(mode));
  return std::unique_ptr<PageProtection>(new PageProtection(std::move(aead), buffers));
}

// Each store has a new proof, unless the existing copies may stay: then a missing copy is made of
// the same bytes. Equal checksums do not prove equal pages: an adversary who chooses the content
// can construct a collision.
Status PageProtection::protect(PageJob& job, const StoredPage& before) {
  const ConstBytes page = job.stored;
  const tiers::PageIdentity identity = job.page.identity();
  if (aead_->encrypts()) {
    job.encrypted = buffers_.take(page.size());
    if (!job.encrypted)
      return fail(VMEM_ERROR_OUT_OF_MEMORY, fmt::format("no memory to encrypt a page of {}", format_bytes(page.size())),
                  ENOMEM);
    job.stored = job.encrypted.bytes();
  }
  job.content = tiers::seal(page, identity);
  job.same = job.transfer.if_changed && before.page.identity() == identity && before.content == job.content &&
             aead_->protect_again(page, identity, before.proof, job.stored);
  job.proof = job.same ? before.proof : aead_->protect(page, identity, job.stored);
  const tiers::Checksum sum = aead_->encrypts() ? tiers::seal(job.stored, identity) : job.content;
  job.page.low = sum.low;
  job.page.high = sum.high;
  return {};
}

}  // namespace vmem::rdma
