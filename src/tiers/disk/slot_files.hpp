// Slots for pages in files, one file per directory. A file grows by chunks, whose space is
// allocated before a page is sent there: a full disk is detected while the page still has another
// copy. Empty chunks are punched out, which returns their space to the file system. The files are
// unnamed: they end with the process, however it ends.
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
#include "base/status.hpp"
#include "tiers/disk/disk_options.hpp"
#include "tiers/tier.hpp"

namespace vmem::tiers {

class SlotFiles {
 public:
  // Budgets count pages; each page's header takes 4 KiB more. The destructor waits up to
  // `answer_wait` for the file systems to close the files.
  // Errors: INVALID_OPTION if a directory is missing, not a directory, read-only, without O_DIRECT,
  // or has less room than its budget; TIMEOUT if the file systems together exceed `answer_wait`.
  static Result<std::unique_ptr<SlotFiles>> create(const std::vector<StoreDirectory>& directories,
                                                   std::chrono::microseconds answer_wait = std::chrono::seconds(30));
  ~SlotFiles();
  SlotFiles(const SlotFiles&) = delete;
  SlotFiles& operator=(const SlotFiles&) = delete;

  std::vector<int> descriptors() const;
  // Takes a file out of service permanently: it grants no slots, and its budget no longer counts.
  // Pages stay readable, and slots can be given back. False if it was out of service already.
  bool retire(std::uint32_t file, const Error& error);
  // Records a page read; `failed`: with an errno for which ends_service is true. Returns true when
  // the kFailedReads-th failure in a row makes the file's pages count as unreadable.
  bool note_read(std::uint32_t file, bool failed);
  bool unreadable(SlotId slot) const { return files_[place(slot).file].failed_reads >= kFailedReads; }
  // Why the file is out of service; nothing while it is in service.
  const std::optional<Error>& retired(std::uint32_t file) const { return files_[file].retired; }
  // Why no file is in service; nothing while one is.
  std::optional<Error> out_of_service() const;
  // Maximum bytes per request.
  std::uint32_t request_bytes(std::uint32_t file) const { return files_[file].request_bytes; }

  // A slot with allocated space, from the files in turn; nothing if there is none.
  std::optional<SlotId> take(std::uint64_t page_bytes);
  void give_back(SlotId slot);

  // Growing and shrinking in three steps: call plan_* and settle under the owner's lock, carry_out
  // without it.
  struct Change {
    enum class Kind : std::uint8_t { allocate, punch } kind;
    std::uint32_t chunk;
    std::uint32_t file;
    std::uint64_t offset, bytes;
  };
  // Whether a file has no free slot but room for a chunk: until it grows, take skips that file.
  bool uneven(std::uint64_t page_bytes) const;
  // Whether changes that allocate, or that punch, are planned and not settled.
  bool growing() const;
  bool shrinking() const;
  // The next chunk for pages of that size, if the budget of a file that is not growing has room:
  // prefers files without a free slot, then the one with most room.
  std::optional<Change> plan_growth(std::uint64_t page_bytes);
  // An empty chunk to punch out: one that is not the reserve of its page size, or any whose page
  // size differs from the wanted one.
  std::optional<Change> plan_shrinking(std::optional<std::uint64_t> wanted_page_bytes = std::nullopt);
  Status carry_out(const Change& change) const;
  // Applies a change; `done`: whether carry_out succeeded. A file that failed to grow is not asked
  // again until one of its chunks is punched out or try_full_ones.
  void settle(const Change& change, bool done);
  void try_full_ones();

  struct Place {
    std::uint32_t file;
    std::uint64_t header, bytes;  // offsets
  };
  Place place(SlotId slot) const;
  const std::string& path(std::uint32_t file) const { return files_[file].path; }

  // Without the owner's lock, for a taken slot: punch returns part of its space to the file system,
  // fill_hole allocates it again. `from` is relative to the header.
  // Errors: OUT_OF_MEMORY (the file system has no space left), DRIVER.
  Status punch(const Place& place, std::uint64_t from, std::uint64_t bytes) const;
  Status fill_hole(const Place& place, std::uint64_t from, std::uint64_t bytes) const;

  // Whether an I/O errno means that the file system stopped working: it failed, was removed or made
  // read-only, or its server, target or connection is gone.
  static bool ends_service(int error);

  // Used share of the budget in uncompressed pages, 0 to 1; 1 also while a disk is full.
  double fill() const;
  std::vector<std::uint64_t> budgets() const;  // of files in service
  std::uint64_t budget_bytes() const;          // their sum
  std::uint64_t used_bytes() const { return used_bytes_; }
  std::uint64_t ready_bytes() const { return ready_bytes_; }

 private:
  static constexpr std::uint32_t kSlotsMax = 128;   // per chunk
  static constexpr std::uint32_t kFailedReads = 3;  // pages in a row, each after several tries
  struct Chunk {
    std::uint32_t file = 0;
    std::uint64_t offset = 0;
    std::uint64_t page_bytes = 0;
    std::uint32_t slots = 0, used = 0;
    // Between the plan of a change and its settlement: growing or shrinking.
    enum class State : std::uint8_t { spare, growing, ready, shrinking };
    State state = State::spare;
    std::bitset<kSlotsMax> taken;
  };
  struct File {
    std::string path;
    std::uint64_t budget_bytes = 0;
    FileDescriptor descriptor;
    std::uint32_t request_bytes = 0;
    bool full = false;                                  // the disk, regardless of the budget
    std::optional<Error> retired;                       // why it is out of service
    std::uint32_t failed_reads = 0;                     // in a row
    std::uint64_t allocated_bytes = 0;                  // of its budget
    std::uint64_t end = 0;                              // end of the last chunk ever planned
    std::multimap<std::uint64_t, std::uint64_t> holes;  // punched-out chunks: size → offset
  };
  explicit SlotFiles(std::chrono::microseconds answer_wait) : answer_wait_(answer_wait) {}
  static Result<File> open(const StoreDirectory& directory);
  Status change_space(Change::Kind kind, std::uint32_t file, std::uint64_t offset, std::uint64_t bytes) const;
  std::uint32_t slots_that_fit(const File& file, std::uint64_t page_bytes) const;
  std::vector<bool> growing_files() const;
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
