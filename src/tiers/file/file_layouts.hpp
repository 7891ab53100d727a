// The slots of mapped files: which page of which file each one is. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tiers/file/mapped_file.hpp"
#include "tiers/slot_runs.hpp"

namespace vmem::tiers {

// A page of a mapped file. Keeps the file open.
struct FilePage {
  // Checksum per page of the bytes that were read first. The tier's thread only.
  using Sums = std::vector<std::optional<std::uint64_t>>;
  std::shared_ptr<MappedFile> file;
  std::shared_ptr<Sums> sums;
  std::uint32_t index = 0;           // in the mapping
  std::uint64_t begin = 0, end = 0;  // of its bytes in the file; `end` within the mapped range
  bool whole = false;                // the range does not end in it

  std::optional<std::uint64_t>& first_sum() const { return (*sums)[index]; }
};

class FileLayouts {
 public:
  // Pages begin at multiples of kBlockBytes in a file: the one with the range's begin, here.
  static std::uint64_t first_byte(const MappedFile& file);

  // Numbers `count` pages of the file. Errors: ADDRESS_SPACE.
  Result<SlotId> lay_out(const std::shared_ptr<MappedFile>& file, std::uint64_t page_bytes, std::uint32_t count);
  void forget(SlotId first) { runs_.erase(first); }
  void clear() { runs_.clear(); }
  FilePage page(SlotId slot) const;  // REQUIRES: laid out

 private:
  struct Layout {
    std::shared_ptr<MappedFile> file;
    std::uint64_t page_bytes = 0;
    std::shared_ptr<FilePage::Sums> sums;
  };
  SlotRuns<Layout> runs_;
};

}  // namespace vmem::tiers
