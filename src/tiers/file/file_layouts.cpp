#include "tiers/file/file_layouts.hpp"

#include <algorithm>
#include <iterator>
#include <limits>

#include "tiers/io/pieces.hpp"

namespace vmem::tiers {

std::uint64_t FileLayouts::first_byte(const MappedFile& file) { return file.begin() / kBlockBytes * kBlockBytes; }

Result<SlotId> FileLayouts::lay_out(const std::shared_ptr<MappedFile>& file, std::uint64_t page_bytes,
                                    std::uint32_t count) {
  const std::lock_guard lock(mutex_);
  // First fit.
  SlotId first = 0;
  for (const auto& [begin, layout] : layouts_) {
    if (begin - first >= count) break;
    first = begin + layout.count;
  }
  if (std::numeric_limits<SlotId>::max() - first < count)
    return fail(VMEM_ERROR_ADDRESS_SPACE, "more pages of files are mapped than can be numbered; free some mappings");
  layouts_[first] = {file, page_bytes, count, std::make_shared<FilePage::Sums>(count)};
  return first;
}

void FileLayouts::forget(SlotId first) {
  const std::lock_guard lock(mutex_);
  layouts_.erase(first);
}

void FileLayouts::clear() {
  const std::lock_guard lock(mutex_);
  layouts_.clear();
}

FilePage FileLayouts::page(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  const auto& [first, layout] = *std::prev(layouts_.upper_bound(slot));
  FilePage page{.file = layout.file, .sums = layout.sums, .index = slot - first};
  page.begin = first_byte(*layout.file) + page.index * layout.page_bytes;
  page.end = std::min(page.begin + layout.page_bytes, layout.file->end());
  page.whole = page.end == page.begin + layout.page_bytes;
  return page;
}

}  // namespace vmem::tiers
