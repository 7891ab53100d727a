// Places for pages in files, one file in each directory. A file grows by chunks, whose space is allocated before a page is sent there:
// a full disk is found out while the page still has another place. Chunks without pages are punched out again, so what was freed is
// free for others too. The files have no names: they end with the process, however it ends.
#pragma once

#include <bitset>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/options.hpp"
#include "base/status.hpp"
#include "tiers/tier.hpp"

namespace vmem::tiers {

class SlotFiles {
 public:
  // Sizes are of pages, whose headers take 4 KiB more each. Errors: INVALID_OPTION, when a directory is missing, no directory, read-only, without O_DIRECT, or has less room than its budget. TIMEOUT, when the file
  // systems take longer than `answer_wait` together. The end waits as long for them to close the files.
  static Result<std::unique_ptr<SlotFiles>> create(const std::vector<StoreDirectory>& directories,
                                                   std::chrono::microseconds answer_wait = std::chrono::seconds(30));
  ~SlotFiles();
  SlotFiles(const SlotFiles&) = delete;
  SlotFiles& operator=(const SlotFiles&) = delete;

  std::vector<int> descriptors() const;
  // Takes a file out of service for good: it gives no more slots, and its budget counts no more. Its pages can be read, and its slots
  // given back. Returns false if it was out of service before.
  bool retire(std::uint32_t file, const Error& error);
  // A page of it could be read, or not, for an errno that ends its service. Returns true when so many in a row could not that
  // its pages are taken for unreadable.
  bool note_read(std::uint32_t file, bool failed);
  bool unreadable(SlotId slot) const { return files_[place(slot).file].failed_reads >= kFailedReads; }
  const std::optional<Error>& retired(std::uint32_t file) const { return files_[file].retired; }  // why it is
  // Why there is no file in service; nothing while there is one.
  std::optional<Error> out_of_service() const;
  std::uint32_t request_bytes(std::uint32_t file) const {
    return files_[file].request_bytes;
  }  // at most, of one request

  // A slot whose space is allocated, from one file after the other; nothing when there is none.
  std::optional<SlotId> take(std::uint64_t page_bytes);
  void give_back(SlotId slot);

  // Growing and shrinking in three steps: plan and settle under the owner's lock, carry out without it.
  struct Change {
    enum class Kind : std::uint8_t { allocate, punch } kind;
    std::uint32_t chunk;
    std::uint32_t file;
    std::uint64_t offset, bytes;
  };
  // Whether a file has no slot to give, and room for a chunk: then slots do not come from each file in turn.
  bool uneven(std::uint64_t page_bytes) const;
  // The next chunk for pages of that size, if a file has room for one in its budget: one without a slot to give, and with most room.
  std::optional<Change> plan_growth(std::uint64_t page_bytes);
  // A chunk that has no pages, and is not wanted next, or is where pages of another size are wanted more.
  std::optional<Change> plan_shrinking(std::optional<std::uint64_t> wanted_page_bytes = std::nullopt);
  Status carry_out(const Change& change) const;
  // Whether it was done. A file that did not get its chunk is not asked again before one of its chunks was punched out, or until
  // try_full_ones.
  void settle(const Change& change, bool done);
  void try_full_ones();

  struct Place {
    std::uint32_t file;
    std::uint64_t header, bytes;  // offsets
  };
  Place place(SlotId slot) const;
  std::uint64_t page_bytes(SlotId slot) const { return chunks_[slot / kSlotsMax].page_bytes; }
  const std::string& path(std::uint32_t file) const { return files_[file].path; }

  // Of a slot that is taken, without the owner's lock: gives a part of its space back to the file system, and allocates it
  // again. Errors: OUT_OF_MEMORY (others have taken what was given back), DRIVER.
  Status punch(const Place& place, std::uint64_t from, std::uint64_t bytes) const;
  Status fill_hole(const Place& place, std::uint64_t from, std::uint64_t bytes) const;

  // Whether an errno of a write says that the file system takes no more of them: it failed, was removed or made read-only, or
  // its server, target or connection has gone.
  static bool ends_service(int error);

  // 0 to 1: of the budget, in pages as they are; 1, too, while a disk has no room for more.
  double fill() const;
  std::vector<std::uint64_t> budgets() const;  // of files in service
  std::uint64_t budget_bytes() const;          // their sum
  std::uint64_t used_bytes() const { return used_bytes_; }
  std::uint64_t ready_bytes() const { return ready_bytes_; }

 private:
  static constexpr std::uint32_t kSlotsMax = 128;   // of a chunk
  static constexpr std::uint32_t kFailedReads = 3;  // of pages, each of which was tried several times
  struct Chunk {
    std::uint32_t file = 0;
    std::uint64_t offset = 0;
    std::uint64_t page_bytes = 0;
    std::uint32_t slots = 0, used = 0;
    bool ready = false;  // its space is allocated
    bool changing = false;
    std::bitset<kSlotsMax> taken;
  };
  struct File {
    std::string path;
    std::uint64_t budget_bytes = 0;
    FileDescriptor descriptor;
    std::uint32_t request_bytes = 0;
    bool full = false;                                  // its disk, whatever its budget says
    std::optional<Error> retired;                       // why it is out of service
    std::uint32_t failed_reads = 0;                     // in a row
    std::uint64_t allocated_bytes = 0;                  // of its budget
    std::uint64_t end = 0;                              // no chunk was ever behind it
    std::multimap<std::uint64_t, std::uint64_t> holes;  // size → offset, of chunks that were punched out
  };
  explicit SlotFiles(std::chrono::microseconds answer_wait) : answer_wait_(answer_wait) {}
  static Result<File> open(const StoreDirectory& directory);
  Status change_space(Change::Kind kind, std::uint32_t file, std::uint64_t offset, std::uint64_t bytes) const;
  std::uint32_t slots_that_fit(const File& file, std::uint64_t page_bytes) const;
  std::uint64_t free_bytes(std::uint64_t page_bytes) const;
  std::vector<bool> files_that_give(std::uint64_t page_bytes) const;

  const std::chrono::microseconds answer_wait_;
  std::vector<File> files_;
  std::deque<Chunk> chunks_;
  std::vector<std::uint32_t> spare_chunks_;
  std::uint32_t next_file_ = 0;
  std::uint64_t used_bytes_ = 0, ready_bytes_ = 0;
};

}  // namespace vmem::tiers
