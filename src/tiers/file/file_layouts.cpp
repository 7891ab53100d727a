#include "tiers/file/file_layouts.hpp"

#include <algorithm>

#include "tiers/io/pieces.hpp"

namespace vmem::tiers {

std::uint64_t FileLayouts::first_byte(const MappedFile& file) { return file.begin() / kBlockBytes * kBlockBytes; }

Result<SlotId> FileLayouts::lay_out(const std::shared_ptr<MappedFile>& file, std::uint64_t page_bytes,
                                    std::uint32_t count) {
  return runs_.add(count, {file, page_bytes, std::make_shared<FilePage::Sums>(count)});
}

FilePage FileLayouts::page(SlotId slot) const {
  const auto& [layout, index] = runs_.find(slot);
  FilePage page{.file = layout.file, .sums = layout.sums, .index = index};
  page.begin = first_byte(*layout.file) + page.index * layout.page_bytes;
  page.end = std::min(page.begin + layout.page_bytes, layout.file->end());
  page.whole = page.end == page.begin + layout.page_bytes;
  return page;
}

}  // namespace vmem::tiers
