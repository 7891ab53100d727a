#include "migration/policy/copy_cache.hpp"

namespace vmem::migration {

using pagetable::PageId;

void CopyCache::begins(PageId page, std::uint64_t bytes) {
  const auto added = copies_.try_emplace(page).first;
  try {
    added->second = {.at = unused_.insert(unused_.end(), page), .bytes = bytes};
  } catch (...) {
    copies_.erase(added);
    throw;
  }
  bytes_ += bytes;
}

void CopyCache::used(PageId page) noexcept {
  const auto found = copies_.find(page);
  if (found == copies_.end()) return;
  Copy& copy = found->second;
  used_.splice(used_.end(), list_of(copy), copy.at);
  if (!copy.used) candidate_bytes_ += copy.bytes;
  copy.used = true;
}

bool CopyCache::is_used(PageId page) const {
  const auto found = copies_.find(page);
  return found != copies_.end() && found->second.used;
}

void CopyCache::ends(PageId page) noexcept {
  const auto found = copies_.find(page);
  if (found == copies_.end()) return;
  const Copy& copy = found->second;
  bytes_ -= copy.bytes;
  candidate_bytes_ -= copy.used ? copy.bytes : 0;
  list_of(copy).erase(copy.at);
  copies_.erase(found);
}

std::uint64_t CopyCache::metadata_bytes() const {
  constexpr std::size_t kNodes = 6 * sizeof(void*);  // of both containers
  return copies_.size() * (sizeof(Copy) + 2 * sizeof(PageId) + kNodes);
}

}  // namespace vmem::migration
