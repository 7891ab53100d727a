#include "tiers/file/file_loads.hpp"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "base/sizes.hpp"
#include "tiers/async/frame_load.hpp"

namespace vmem::tiers {
namespace {

constexpr std::uint32_t kTries = 3;  // of a page that a disk fails to read

}  // namespace

void FileLoads::post(const Transfer& transfer, FilePage page) {
  auto job = std::make_unique<Job>(Job{.transfer = transfer, .page = std::move(page)});
  thread_.post([this, job = std::move(job)]() mutable { start(std::move(job)); });
}

void FileLoads::start(JobPtr job) {
  job->transfer.host == nullptr ? read_into_frame(std::move(job)) : read(std::move(job));
}

void FileLoads::read_into_frame(JobPtr job) {
  const Job& it = *job;
  load_into_frame(
      *frame_reader_, *it.page.file->for_frames(), it.page.begin, it.transfer, thread_,
      [this, job = std::move(job)](Status status) mutable { frame_loaded(std::move(job), std::move(status)); });
}

void FileLoads::frame_loaded(JobPtr job, Status status) {
  const MappedFile& file = *job->page.file;
  if (auto change = file.change()) return complete(*job, Outcome::lost, *std::move(change));
  if (!status) return complete(*job, Outcome::failed, std::move(status).error());
  if (!file.doubted()) return complete(*job, Outcome::done);
  complete(*job, Outcome::failed,
           {VMEM_ERROR_UNSUPPORTED, 0, file.path() + " has to be compared with what was read before"});
}

// Whole blocks: may read beyond the range's end into the page's rest, which is zeroed afterwards.
void FileLoads::read(JobPtr job) {
  const MappedFile& file = *job->page.file;
  job->direct = file.direct();
  ++job->tries;
  PageIo::Page page;
  page.file = std::uint32_t(file.descriptor());
  page.offset = job->page.begin;
  page.needed_bytes = job->page.end - job->page.begin;
  page.bytes = (page.needed_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  page.memory = job->transfer.host;
  page.most_request_bytes = std::min(piece_bytes_, file.request_bytes());
  thread_.pages().begin(page, [this, job = std::move(job)](std::optional<PageIo::Failure> failure) mutable {
    read_ended(std::move(job), std::move(failure));
  });
}

void FileLoads::read_ended(JobPtr job, std::optional<PageIo::Failure> failure) {
  // Checked after the read: if the file is unchanged, the bytes are valid.
  if (auto change = job->page.file->change()) return complete(*job, Outcome::lost, *std::move(change));
  if (failure) {
    if (failure->cause == PageIo::Failure::Cause::queue) job->tries = kTries;
    Error error = error_of(*job, *failure);
    return retry_or_fail(std::move(job), std::move(error));
  }
  if (auto other = compare_with_first(*job)) return retry_or_fail(std::move(job), *std::move(other));
  const std::uint64_t filled = job->page.end - job->page.begin;
  std::memset(job->transfer.host + filled, 0, job->transfer.bytes - filled);
  complete(*job, Outcome::done);
}

Error FileLoads::error_of(const Job& job, const PageIo::Failure& failure) {
  const MappedFile& file = *job.page.file;
  if (failure.cause == PageIo::Failure::Cause::queue) return failure.queue;
  if (failure.cause == PageIo::Failure::Cause::file_ended) return file.ended_at(failure.io.offset);
  return {VMEM_ERROR_DRIVER, failure.error,
          fmt::format("reading {} at {} of {}: {} ({} tries)", format_bytes(failure.io.bytes), failure.io.offset,
                      file.path(), std::strerror(failure.error), kTries)};
}

void FileLoads::retry_or_fail(JobPtr job, Error error) {
  // Some file systems accept O_DIRECT in open and refuse the reads: retry through the page cache.
  // Pages in flight meanwhile get here, too.
  if (job->direct && error.native == EINVAL) {
    MappedFile& file = *job->page.file;
    if (file.direct()) {
      VMEM_LOG_INFO("{}: its file system refuses direct reads, they go through the page cache", file.path());
      file.read_through_page_cache();
    }
    --job->tries;
  }
  if (job->tries < kTries) return read(std::move(job));
  complete(*job, error.status == VMEM_ERROR_LOST ? Outcome::lost : Outcome::failed, std::move(error));
}

// An error if the page's bytes differ from the first read: for a file of which only the status
// change time differs, nothing else reveals a write.
std::optional<Error> FileLoads::compare_with_first(const Job& job) {
  const FilePage& page = job.page;
  std::optional<std::uint64_t>& first = page.first_sum();
  if (first && !page.file->doubted()) return std::nullopt;
  const std::uint64_t sum = XXH3_64bits(job.transfer.host, page.end - page.begin);
  if (!first) first = sum;
  if (*first == sum) return std::nullopt;
  return page.file->other_bytes(page.begin, page.end);
}

void FileLoads::complete(const Job& job, Outcome outcome, Error error) {
  ledger_.complete({.id = job.transfer.id, .outcome = outcome, .error = std::move(error), .changed = false},
                   Direction::load);
}

}  // namespace vmem::tiers
