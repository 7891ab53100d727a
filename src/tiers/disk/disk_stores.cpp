#include "tiers/disk/disk_stores.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/sizes.hpp"

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kLeastHole = 16;  // smallest hole worth punching: 1/16 of the page
constexpr double kTight = 0.85;           // fill from which slots are punched

}  // namespace

void DiskStores::post(JobPtr job) {
  parts_.thread.post([this, job = std::move(job)]() mutable { start(std::move(job)); });
}

void DiskStores::start(JobPtr job) {
  const SlotId slot = job->transfer.slot;
  job->held = parts_.contents.find(slot, job->identity());
  job->allocated_bytes = parts_.contents.allocated_bytes(slot, job->slot_bytes());
  if (!parts_.sealer.compresses()) return seal(std::move(job));
  const std::uint64_t bytes = job->slot_bytes();
  staging_.request(bytes, [this, job = std::move(job)](Staging::Buffer buffer) mutable {
    job->staged = std::move(buffer);  // without a buffer the page is stored uncompressed
    seal(std::move(job));
  });
}

void DiskStores::seal(JobPtr job) {
  StoreJob& it = *job;
  parts_.workers.post([this, &it](std::uint32_t worker) { parts_.sealer.seal(it, conditions(it), worker); },
                      [this, job = std::move(job)](Workers::Ended how) mutable { sealed(std::move(job), how); });
}

// Any thread. Counts one compressor per page besides the one on the path: compression would only
// delay a single page. With pages in both directions, each gets half the workers. Assumes the write
// rate for reads until some were measured.
PageSealer::Conditions DiskStores::conditions(const StoreJob& job) const {
  if (parts_.meter == nullptr) return {};
  const MeteredQueue::Rates rates = parts_.meter->rates();
  const auto [loads, stores] = parts_.ledger.in_flight();
  const std::uint32_t workers = loads != 0 && stores != 0 ? std::max(parts_.worker_count / 2, 1u) : parts_.worker_count;
  const std::uint64_t beside = stores == 0 ? 0 : stores - 1;
  PageSealer::Conditions conditions;
  conditions.path = {.page_bytes = job.transfer.bytes,
                     .write_bytes_s = rates.write_bytes_s,
                     .read_bytes_s = rates.read_bytes_s == 0 ? rates.write_bytes_s : rates.read_bytes_s,
                     .compressors = std::uint32_t(std::min<std::uint64_t>(workers, beside)),
                     .decompressors = workers,
                     .fill = parts_.space.fill()};
  conditions.write_measurements = rates.write_measurements;
  return conditions;
}

void DiskStores::sealed(JobPtr job, Workers::Ended how) {
  if (how == Workers::Ended::no_memory) {
    Error error{VMEM_ERROR_OUT_OF_MEMORY, ENOMEM,
                fmt::format("no memory to compress a page of {}", format_bytes(job->transfer.bytes))};
    return failed(std::move(job), std::move(error));
  }
  const bool unchanged = job->content == StoreJob::Content::unchanged;
  if (unchanged && !parts_.space.unreadable(job->transfer.slot)) return done(std::move(job));
  // An unreadable directory is out of service: the page is refused, and stays where it is.
  job->io_bytes() > job->allocated_bytes ? fill_hole(std::move(job)) : begin_write(std::move(job));
}

void DiskStores::fill_hole(JobPtr job) {
  const StoreJob& it = *job;
  const std::uint64_t allocated = it.allocated_bytes;
  parts_.space.fill_hole(it.place, allocated, it.io_bytes() - allocated,
                         then_on_thread(std::move(job), &DiskStores::filled));
}

void DiskStores::filled(JobPtr job, Status status) {
  if (!status) return failed(std::move(job), std::move(status).error());
  job->allocated_bytes = job->io_bytes();
  parts_.contents.set_allocated_bytes(job->transfer.slot, job->allocated_bytes, job->slot_bytes());
  begin_write(std::move(job));
}

// For a directory's thread: takes the job back to the tier's thread.
DiskSpace::Then DiskStores::then_on_thread(JobPtr job, void (DiskStores::*next)(JobPtr, Status)) {
  return [this, next, job = std::move(job)](Status status) mutable {
    parts_.thread.post([this, next, job = std::move(job), status = std::move(status)]() mutable {
      (this->*next)(std::move(job), std::move(status));
    });
  };
}

void DiskStores::begin_write(JobPtr job) {
  if (auto refused = parts_.space.retired(job->place.file)) return failed(std::move(job), *std::move(refused));
  // From here on the slot's previous contents are lost.
  parts_.contents.erase(job->transfer.slot);
  if (!job->compressed()) give_up_staging(*job);
  write(std::move(job));
}

void DiskStores::write(JobPtr job) {
  ++job->tries;
  const PageIo::Page io = job->io(Io::Kind::write, parts_.request_bytes(job->place.file));
  parts_.thread.pages().begin(
      io, [this, job = std::move(job)](const auto& failure) mutable { write_ended(std::move(job), failure); });
}

// Retries transient errors; not on a full disk, and not in a directory out of service.
void DiskStores::write_ended(JobPtr job, const std::optional<PageIo::Failure>& failure) {
  const std::uint32_t file = job->place.file;
  if (failure) {
    Error error = io_error(*failure, parts_.space.path(file));
    const bool full = error.status == VMEM_ERROR_OUT_OF_MEMORY && error.native != ENOMEM;
    const bool pointless = full || failure->cause == PageIo::Failure::Cause::queue;
    if (job->tries < kDiskTries && !pointless && !parts_.space.retired(file)) return write(std::move(job));
    parts_.space.write_failed(file, error);
    return failed(std::move(job), std::move(error));
  }
  parts_.contents.set(job->transfer.slot, job->stored);
  worth_punching(*job) ? punch(std::move(job)) : done(std::move(job));
}

bool DiskStores::worth_punching(const StoreJob& job) const {
  const std::uint64_t least = job.io_bytes() + job.transfer.bytes / kLeastHole;
  return job.compressed() && job.allocated_bytes >= least && parts_.space.fill() >= kTight;
}

void DiskStores::punch(JobPtr job) {
  give_up_staging(*job);
  const StoreJob& it = *job;
  const std::uint64_t kept = it.io_bytes();
  parts_.space.punch(it.place, kept, it.allocated_bytes - kept, then_on_thread(std::move(job), &DiskStores::punched));
}

void DiskStores::punched(JobPtr job, Status status) {
  if (status) parts_.contents.set_allocated_bytes(job->transfer.slot, job->io_bytes(), job->slot_bytes());
  done(std::move(job));  // also where the space could not be given back: the page is stored
}

void DiskStores::give_up_staging(StoreJob& job) {
  job.staged.reset();
  staging_.serve();
}

void DiskStores::done(JobPtr job) {
  if (!job->compressed()) parts_.contents.set_plain(job->transfer.slot);
  const bool changed = job->transfer.if_changed && job->content == StoreJob::Content::to_write;
  complete(std::move(job), {.id = 0, .outcome = Outcome::done, .error = {}, .changed = changed});
}

void DiskStores::failed(JobPtr job, Error error) {
  const bool changed = job->transfer.if_changed && job->content != StoreJob::Content::unchanged;
  complete(std::move(job), {.id = 0, .outcome = Outcome::failed, .error = std::move(error), .changed = changed});
}

void DiskStores::complete(JobPtr job, Completion completion) {
  give_up_staging(*job);
  completion.id = job->transfer.id;
  parts_.ledger.complete(std::move(completion), Direction::store);
}

}  // namespace vmem::tiers
