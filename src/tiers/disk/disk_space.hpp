// The space of the disk tier: slots in the files of its directories, which grow and shrink with
// use, and directories that are out of service.
//
// Any thread may call. Each directory has a thread for the file system calls that allocate and
// punch its space, so that a directory that does not answer delays no other.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/log_limit.hpp"
#include "tiers/async/transfer_ledger.hpp"
#include "tiers/async/workers.hpp"
#include "tiers/disk/slot_files.hpp"

namespace vmem::tiers {

class DiskSpace {
 public:
  // The ledger outlives this: it is told when allocate may have a slot.
  // Errors: those of SlotFiles.
  static Result<std::unique_ptr<DiskSpace>> create(const std::vector<StoreDirectory>& directories,
                                                   std::chrono::microseconds answer_wait, TransferLedger& ledger);

  // ---- Tier's calls: see there ----

  TierUsage usage() const;
  std::vector<std::uint64_t> budgets() const;  // of directories in service
  Result<SlotGrant> allocate(std::uint64_t page_bytes);
  void release(SlotId slot);
  // Before the ledger's finish: changes of space that have not begun are obsolete.
  void drop_planned_changes();

  // ---- of files and slots ----

  std::vector<int> descriptors() const { return files_->descriptors(); }
  const std::string& path(std::uint32_t file) const { return files_->path(file); }
  std::uint32_t request_bytes(std::uint32_t file) const { return files_->request_bytes(file); }
  SlotFiles::Place place(SlotId slot) const;
  bool unreadable(SlotId slot) const;
  double fill() const;                  // as SlotFiles::fill
  std::uint64_t punched_bytes() const;  // in all, of slots

  // Gives a part of a taken slot back to the file system; fill_hole allocates it again. `from` is
  // relative to the header. `then` runs on the directory's thread.
  using Then = std::move_only_function<void(Status)>;
  void punch(const SlotFiles::Place& place, std::uint64_t from, std::uint64_t bytes, Then then);
  void fill_hole(const SlotFiles::Place& place, std::uint64_t from, std::uint64_t bytes, Then then);

  // ---- directories out of service ----

  // Takes the directory out of service if the error means that its file system failed.
  void write_failed(std::uint32_t file, const Error& error);
  // Reports each page read; `failed`: the error of its last try; nullopt: the disk answered.
  // Repeated failures take the directory out of service for writes, too.
  void note_read(std::uint32_t file, const std::optional<Error>& failed);
  // Why the directory is out of service; nothing while it is in service.
  std::optional<Error> retired(std::uint32_t file) const;

 private:
  explicit DiskSpace(TransferLedger& ledger) : ledger_(ledger) {}
  void grow(std::uint64_t page_bytes);
  void shrink(std::optional<std::uint64_t> wanted_page_bytes = std::nullopt);
  void carry_out(SlotFiles::Change change);
  void settle(const SlotFiles::Change& change, const Status& done);
  // Runs `call` on the directory's thread, then `then` there with its result.
  void post(std::uint32_t file, std::move_only_function<Status()> call, Then then);
  void change_failed(const char* what, const Error& error);
  void log_retired(std::uint32_t file, const Error& error) const;

  TransferLedger& ledger_;
  std::unique_ptr<SlotFiles> files_;

  mutable std::mutex mutex_;  // guards the lists in files_, and the members below
  std::optional<Error> growth_error_;
  std::chrono::steady_clock::time_point full_since_{};
  std::uint64_t punched_bytes_ = 0;
  bool dropping_ = false;  // planned changes do not begin

  LogLimit change_failures_;                       // of growing and punching
  std::vector<std::unique_ptr<Workers>> threads_;  // by file
};

}  // namespace vmem::tiers
