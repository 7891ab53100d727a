#include "tiers/disk/disk_loads.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "base/sizes.hpp"
#include "tiers/async/frame_load.hpp"

namespace vmem::tiers {
void DiskLoads::post(JobPtr job) {
  parts_.thread.post([this, job = std::move(job)]() mutable { start(std::move(job)); });
}

void DiskLoads::start(JobPtr job) {
  const auto stored = parts_.contents.find(job->transfer.slot, job->identity());
  if (!stored) {
    const SlotId slot = job->transfer.slot;
    return complete(std::move(job), Outcome::lost,
                    {VMEM_ERROR_LOST, 0, fmt::format("no page of that version was stored in slot {}", slot)});
  }
  job->stored = *stored;
  if (job->transfer.host == nullptr) return read_into_frame(std::move(job));
  job->compressed() ? stage(std::move(job)) : read(std::move(job));
}

// Reads the bytes without the header. Not checked here: the mover compares the frame's fingerprint.
// Not repeated here either: the mover then reads the page through host memory.
void DiskLoads::read_into_frame(JobPtr job) {
  const DiskJob& it = *job;
  load_into_frame(*parts_.frames.reader, *parts_.frames.files[it.place.file], it.place.bytes, it.transfer,
                  parts_.thread, [this, job = std::move(job)](Status status) mutable {
                    if (status) return complete(std::move(job), Outcome::done);
                    complete(std::move(job), Outcome::failed, std::move(status).error());
                  });
}

void DiskLoads::stage(JobPtr job) {
  const std::uint64_t bytes = job->slot_bytes();
  staging_.request(bytes, [this, job = std::move(job)](Staging::Buffer buffer) mutable {
    job->staged = std::move(buffer);
    if (job->staged) return read(std::move(job));
    Error error{VMEM_ERROR_OUT_OF_MEMORY, ENOMEM,
                fmt::format("no memory to read a compressed page of {} into", format_bytes(job->transfer.bytes))};
    complete(std::move(job), Outcome::failed, std::move(error));
  });
}

void DiskLoads::read(JobPtr job) {
  ++job->tries;
  const PageIo::Page io = job->io(Io::Kind::read, parts_.request_bytes(job->place.file));
  parts_.thread.pages().begin(
      io, [this, job = std::move(job)](const Failed& failure) mutable { on_read(std::move(job), failure); });
}

void DiskLoads::on_read(JobPtr job, const Failed& failure) {
  if (!failure) return check(std::move(job));
  // The queue takes nothing any more: this was the last try.
  if (failure->cause == PageIo::Failure::Cause::queue) job->tries = kDiskTries;
  Error error = io_error(*failure, parts_.space.path(job->place.file));
  disk_failed(std::move(job), std::move(error));
}

std::unexpected<Error> DiskLoads::no_memory(const DiskJob& job) {
  return fail(VMEM_ERROR_OUT_OF_MEMORY,
              fmt::format("no memory to decompress a page of {}", format_bytes(job.transfer.bytes)), ENOMEM);
}

void DiskLoads::check(JobPtr job) {
  struct Checked {
    JobPtr job;
    Result<PageSealer::Check> check = PageSealer::Check::damaged;
  };
  auto checked_job = std::make_unique<Checked>(Checked{.job = std::move(job)});
  Checked& it = *checked_job;
  parts_.workers.post([this, &it](std::uint32_t worker) { it.check = parts_.sealer.open(*it.job, worker); },
                      [this, checked_job = std::move(checked_job)](Workers::Ended how) mutable {
                        if (how == Workers::Ended::no_memory) checked_job->check = no_memory(*checked_job->job);
                        checked(std::move(checked_job->job), checked_job->check);
                      });
}

void DiskLoads::checked(JobPtr job, const Result<PageSealer::Check>& check) {
  if (!check) return complete(std::move(job), Outcome::failed, check.error());
  if (*check == PageSealer::Check::damaged) return damaged(std::move(job));
  parts_.space.note_read(job->place.file, std::nullopt);
  complete(std::move(job), Outcome::done);
}

void DiskLoads::disk_failed(JobPtr job, Error error) {
  if (job->tries < kDiskTries) return read(std::move(job));
  parts_.space.note_read(job->place.file, error);
  complete(std::move(job), Outcome::failed, std::move(error));
}

// The damage may be in the transfer, not on the disk: reads again.
void DiskLoads::damaged(JobPtr job) {
  if (job->tries < kDiskTries) return read(std::move(job));
  parts_.space.note_read(job->place.file, std::nullopt);
  Error error{VMEM_ERROR_LOST, 0,
              fmt::format("what the file in {} holds at {} is not what was written there: its checksum differs",
                          parts_.space.path(job->place.file), job->place.bytes)};
  complete(std::move(job), Outcome::lost, std::move(error));
}

void DiskLoads::complete(JobPtr job, Outcome outcome, Error error) {
  job->staged.reset();
  staging_.serve();
  parts_.ledger.complete({.id = job->transfer.id, .outcome = outcome, .error = std::move(error), .changed = false},
                         Direction::load);
}

}  // namespace vmem::tiers
