#include "tiers/disk/disk_space.hpp"

#include <cerrno>
#include <utility>

#include "base/log.hpp"

namespace vmem::tiers {
namespace {

constexpr std::chrono::seconds kFullFor{1};  // until a full disk is asked again

Status no_memory() { return fail(VMEM_ERROR_OUT_OF_MEMORY, "no memory to change the space of a file with", ENOMEM); }

}  // namespace

Result<std::unique_ptr<DiskSpace>> DiskSpace::create(const std::vector<StoreDirectory>& directories,
                                                     std::chrono::microseconds answer_wait, TransferLedger& ledger) {
  std::unique_ptr<DiskSpace> space(new DiskSpace(ledger));
  VMEM_ASSIGN(space->files_, SlotFiles::create(directories, answer_wait));
  for (std::size_t i = 0; i < directories.size(); ++i) {
    space->threads_.push_back(std::make_unique<Workers>("vmem-disk-space", 1, [](Inbox::Task task) { task(); }));
  }
  return space;
}

TierUsage DiskSpace::usage() const {
  const std::lock_guard lock(mutex_);
  return {files_->budget_bytes(), files_->used_bytes(), files_->ready_bytes()};
}

std::vector<std::uint64_t> DiskSpace::budgets() const {
  const std::lock_guard lock(mutex_);
  return files_->budgets();
}

Result<SlotGrant> DiskSpace::allocate(std::uint64_t page_bytes) {
  const std::lock_guard lock(mutex_);
  if (const auto slot = files_->take(page_bytes)) {
    growth_error_.reset();
    if (files_->uneven(page_bytes)) grow(page_bytes);
    return SlotGrant{Grant::granted, *slot};
  }
  if (auto error = files_->out_of_service()) return std::unexpected(*std::move(error));
  // If one directory failed to grow, another may succeed.
  grow(page_bytes);
  if (!files_->growing() && !files_->shrinking()) shrink(page_bytes);
  // A chunk being punched out may make room for one of this page size.
  if (files_->growing() || files_->shrinking()) return SlotGrant{Grant::later, 0};
  if (growth_error_) return std::unexpected(*std::exchange(growth_error_, std::nullopt));
  return SlotGrant{Grant::full, 0};
}

void DiskSpace::release(SlotId slot) {
  const std::lock_guard lock(mutex_);
  files_->give_back(slot);
  shrink();
}

void DiskSpace::drop_planned_changes() {
  const std::lock_guard lock(mutex_);
  dropping_ = true;
}

SlotFiles::Place DiskSpace::place(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  return files_->place(slot);
}

bool DiskSpace::unreadable(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  return files_->unreadable(slot);
}

double DiskSpace::fill() const {
  const std::lock_guard lock(mutex_);
  return files_->fill();
}

std::uint64_t DiskSpace::punched_bytes() const {
  const std::lock_guard lock(mutex_);
  return punched_bytes_;
}

// ---- growing and shrinking ----

// REQUIRES: mutex_.
void DiskSpace::grow(std::uint64_t page_bytes) {
  if (std::chrono::steady_clock::now() - full_since_ > kFullFor) files_->try_full_ones();
  if (const auto change = files_->plan_growth(page_bytes)) carry_out(*change);
}

// REQUIRES: mutex_.
void DiskSpace::shrink(std::optional<std::uint64_t> wanted_page_bytes) {
  if (const auto change = files_->plan_shrinking(wanted_page_bytes)) carry_out(*change);
}

void DiskSpace::carry_out(SlotFiles::Change change) {
  // Nothing: dropped.
  auto chore = std::make_unique<std::optional<TransferLedger::Chore>>();
  auto& begun = *chore;
  const auto call = [this, change, &begun]() -> Status {
    {
      const std::lock_guard lock(mutex_);
      if (dropping_) return {};
      begun.emplace(ledger_);
    }
    return files_->carry_out(change);
  };
  post(change.file, call, [this, change, chore = std::move(chore)](const Status& done) {
    if (*chore) settle(change, done);
  });
}

void DiskSpace::settle(const SlotFiles::Change& change, const Status& done) {
  const bool growth = change.kind == SlotFiles::Change::Kind::allocate;
  if (!done) write_failed(change.file, done.error());
  {
    const std::lock_guard lock(mutex_);
    files_->settle(change, done.has_value());
    if (growth && !done) {
      full_since_ = std::chrono::steady_clock::now();
      if (done.error().status != VMEM_ERROR_OUT_OF_MEMORY) growth_error_ = done.error();
    }
  }
  if (!done) change_failed(growth ? "cannot grow" : "keeps space it does not use", done.error());
  ledger_.tell_ready();
}

void DiskSpace::post(std::uint32_t file, std::move_only_function<Status()> call, Then then) {
  auto result = std::make_unique<Status>();
  Status& at = *result;
  threads_[file]->post([&at, call = std::move(call)](std::uint32_t) mutable { at = call(); },
                       [result = std::move(result), then = std::move(then)](Workers::Ended how) mutable {
                         then(how == Workers::Ended::done ? std::move(*result) : no_memory());
                       });
}

void DiskSpace::fill_hole(const SlotFiles::Place& place, std::uint64_t from, std::uint64_t bytes, Then then) {
  post(
      place.file, [this, place, from, bytes] { return files_->fill_hole(place, from, bytes); },
      [this, place, then = std::move(then)](Status done) mutable {
        if (!done) write_failed(place.file, done.error());
        then(std::move(done));
      });
}

void DiskSpace::punch(const SlotFiles::Place& place, std::uint64_t from, std::uint64_t bytes, Then then) {
  post(
      place.file, [this, place, from, bytes] { return files_->punch(place, from, bytes); },
      [this, place, bytes, then = std::move(then)](Status done) mutable {
        if (done) {
          const std::lock_guard lock(mutex_);
          punched_bytes_ += bytes;
        } else {
          write_failed(place.file, done.error());
          change_failed("keeps space it does not use", done.error());
        }
        then(std::move(done));
      });
}

void DiskSpace::change_failed(const char* what, const Error& error) {
  if (const auto failure = change_failures_.next(); failure.logged)
    VMEM_LOG_WARN("the disk tier {}: {} ({} such failures)", what, error.message, failure.count);
}

// ---- directories out of service ----

void DiskSpace::write_failed(std::uint32_t file, const Error& error) {
  if (!SlotFiles::ends_service(error.native)) return;
  {
    const std::lock_guard lock(mutex_);
    if (!files_->retire(file, error)) return;
  }
  log_retired(file, error);
}

void DiskSpace::note_read(std::uint32_t file, const std::optional<Error>& failed) {
  const bool disk_failed = failed && SlotFiles::ends_service(failed->native);
  bool retired = false;
  {
    const std::lock_guard lock(mutex_);
    if (!files_->note_read(file, disk_failed)) return;
    retired = files_->retire(file, *failed);
  }
  VMEM_LOG_ERROR("pages in {} cannot be read: {}", path(file), failed->message);
  if (retired) log_retired(file, *failed);
}

void DiskSpace::log_retired(std::uint32_t file, const Error& error) const {
  VMEM_LOG_ERROR("nothing more is written to {}, whose pages stay readable while it answers: {}", path(file),
                 error.message);
}

std::optional<Error> DiskSpace::retired(std::uint32_t file) const {
  const std::lock_guard lock(mutex_);
  return files_->retired(file);
}

}  // namespace vmem::tiers
