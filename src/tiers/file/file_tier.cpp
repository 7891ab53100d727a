#include "tiers/file/file_tier.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "base/sizes.hpp"
#include "tiers/disk/request_size.hpp"

namespace vmem::tiers {
namespace {

constexpr std::uint32_t kTries = 3;              // of a page that a disk fails to read
constexpr std::chrono::seconds kLongestWait{1};  // somebody would have to forget to wake us

constexpr std::uint64_t block_down(std::uint64_t offset) { return offset / kBlockBytes * kBlockBytes; }
constexpr std::uint64_t block_up(std::uint64_t offset) { return block_down(offset + kBlockBytes - 1); }

}  // namespace

class FileTier::Source final : public PageSource {
 public:
  Source(FileTier& tier, std::shared_ptr<MappedFile> file) : tier_(tier), file_(std::move(file)) {}
  ~Source() override {
    if (first_) tier_.forget(*first_);
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  std::string name() const override { return file_->path(); }
  std::uint64_t head_bytes() const override { return file_->begin() - block_down(file_->begin()); }
  std::uint64_t bytes() const override { return file_->end() - block_down(file_->begin()); }
  Result<SlotId> lay_out(std::uint64_t page_bytes, std::uint32_t count) override {
    VMEM_ASSIGN(first_, tier_.lay_out(file_, page_bytes, count));
    return *first_;
  }

 private:
  FileTier& tier_;
  const std::shared_ptr<MappedFile> file_;
  std::optional<SlotId> first_;
};

FileTier::~FileTier() {
  finish();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  if (queue_) queue_->wake();
  if (thread_.joinable()) thread_.join();
  layouts_.clear();
  if (!closing_->finish(config_.answer_wait) && config_.frame_reader) keep_for_good(config_.frame_reader);
}

Result<std::shared_ptr<PageSource>> FileTier::map(const std::string& path, std::uint64_t offset, std::uint64_t bytes) {
  VMEM_ASSIGN(std::shared_ptr<MappedFile> file, open(path, offset, bytes));
  VMEM_TRY(start());
  VMEM_LOG_INFO(
      "mapped {} of {}: reads {}", format_bytes(file->end() - file->begin()), path,
      file->direct() ? "pass by the page cache" : "go through the page cache, its file system has no direct I/O");
  // Without a whole page in it there is nothing to try out.
  const bool has_pages = file->end() - block_down(file->begin()) >= pagetable::kGranuleBytes;
  if (config_.frame_reader && has_pages) VMEM_TRY(try_frames(*file));
  return std::make_shared<Source>(*this, std::move(file));
}

// Whoever holds the file last, the mover as well, does not wait for its file system to close it.
Result<std::shared_ptr<MappedFile>> FileTier::open(const std::string& path, std::uint64_t offset, std::uint64_t bytes) {
  auto opened = call_within<Result<std::unique_ptr<MappedFile>>>(
      config_.answer_wait, [path, offset, bytes] { return MappedFile::open(path, offset, bytes); });
  if (!opened) return unanswered(path);
  if (!*opened) return std::unexpected(std::move(*opened).error());
  const auto close = [closing = closing_, reader = config_.frame_reader](MappedFile* file) {
    closing->begin([file, reader] { delete file; });
  };
  return std::shared_ptr<MappedFile>((**opened).release(), close);
}

Status FileTier::try_frames(MappedFile& file) const {
  auto opened = open_within(config_.answer_wait, config_.frame_reader, file.descriptor());
  if (!opened) return unanswered(file.path());
  VMEM_LOG_INFO("{}: {}", file.path(),
                *opened ? "whole pages go straight to HBM by " + config_.frame_reader->describe()
                        : "pages come through host memory: " + opened->error().message);
  if (*opened) file.read_into_frames(**std::move(opened));
  return {};
}

std::unexpected<Error> FileTier::unanswered(const std::string& path) const {
  return fail(VMEM_ERROR_TIMEOUT,
              fmt::format("{} cannot be mapped: its file system did not answer within {} (option call_wait)", path,
                          exact_duration_us(std::uint64_t(config_.answer_wait.count()))));
}

Status FileTier::start() {
  const std::lock_guard lock(mutex_);
  if (queue_) return {};
  VMEM_ASSIGN(queue_, config_.make_queue());
  pieces_.emplace(*queue_);
  thread_ = std::thread([this] { run(); });
  return {};
}

std::string FileTier::describe() const {
  const std::lock_guard lock(mutex_);
  return queue_->describe();
}

Result<SlotId> FileTier::lay_out(const std::shared_ptr<MappedFile>& file, std::uint64_t page_bytes,
                                 std::uint32_t count) {
  const std::lock_guard lock(mutex_);
  // The first gap that is wide enough.
  SlotId first = 0;
  for (const auto& [begin, layout] : layouts_) {
    if (begin - first >= count) break;
    first = begin + layout.count;
  }
  if (std::numeric_limits<SlotId>::max() - first < count)
    return fail(VMEM_ERROR_ADDRESS_SPACE, "more pages of files are mapped than can be numbered; free some mappings");
  layouts_[first] = {file, page_bytes, count, std::make_shared<Sums>(count)};
  return first;
}

void FileTier::forget(SlotId first) {
  const std::lock_guard lock(mutex_);
  layouts_.erase(first);
}

// REQUIRES: mutex_.
const FileTier::Layout& FileTier::layout_of(SlotId slot, SlotId& first) const {
  const auto found = std::prev(layouts_.upper_bound(slot));
  first = found->first;
  return found->second;
}

// REQUIRES: mutex_.
FileTier::JobPtr FileTier::job_for(const Transfer& transfer) const {
  SlotId first = 0;
  const Layout& layout = layout_of(transfer.slot, first);
  auto job = std::make_unique<Job>();
  job->transfer = transfer;
  job->file = layout.file;
  job->sums = layout.sums;
  job->page = transfer.slot - first;
  job->begin = block_down(layout.file->begin()) + (transfer.slot - first) * layout.page_bytes;
  job->end = std::min(job->begin + transfer.bytes, layout.file->end());
  return job;
}

// ---- the mover's calls ----

// Of a page that the range's end is in, the rest has to be filled with zeros: host memory does for that one. So it does
// for a file in doubt, whose bytes are compared there.
bool FileTier::reaches(SlotId slot, int device) const {
  if (config_.frame_reader == nullptr) return false;
  const std::lock_guard lock(mutex_);
  SlotId first = 0;
  const Layout& layout = layout_of(slot, first);
  const std::uint64_t begin = block_down(layout.file->begin()) + (slot - first) * layout.page_bytes;
  const FrameReader::File* const file = layout.file->for_frames();
  return file != nullptr && !layout.file->doubted() && file->reaches(device) &&
         begin + layout.page_bytes <= layout.file->end();
}

Status FileTier::submit(std::span<Transfer> transfers) {
  for (const Transfer& transfer : transfers) {
    if (transfer.direction == Direction::load) continue;
    return fail(VMEM_ERROR_INTERNAL, "a page of a mapped file was to be stored; they are only read");
  }
  for (Transfer& transfer : transfers) transfer.id = 0;
  const std::lock_guard lock(mutex_);
  for (Transfer& transfer : transfers) {
    auto job = job_for(transfer);
    const std::uint64_t id = job->transfer.id = next_transfer_id();
    posted_.push_back(std::move(job));
    transfer.id = id;
    ++jobs_;
    last_moved_ = std::chrono::steady_clock::now();
  }
  queue_->wake();
  return {};
}

Status FileTier::poll(std::vector<Completion>& completions) {
  const std::lock_guard lock(mutex_);
  completions.reserve(completions.size() + completions_.size());
  std::ranges::move(completions_, std::back_inserter(completions));
  completions_.clear();
  return {};
}

void FileTier::finish() noexcept {
  std::unique_lock lock(mutex_);
  while (jobs_ != 0 && !quarantined_) {
    const auto until = last_moved_ + config_.answer_wait;
    if (std::chrono::steady_clock::now() < until) {
      job_ended_.wait_until(lock, until);
      continue;
    }
    quarantined_ = true;
    log::write_plain("a mapped file's disk does not answer: the memory of pages on their way is left to the system");
  }
}

bool FileTier::quarantined() const noexcept {
  const std::lock_guard lock(mutex_);
  return quarantined_;
}

std::string FileTier::where(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  SlotId first = 0;
  return layout_of(slot, first).file->path();
}

// ---- our thread ----

void FileTier::run() {
  ::prctl(PR_SET_NAME, "vmem-file");
  MemoryReserve reserve;
  std::vector<IoResult> results;
  while (take_posted()) {
    (void)reserve.refill();
    pump();
    results.clear();
    auto waited = queue_->wait(results, kLongestWait);
    for (const IoResult& result : results) {
      if (const auto piece = pieces_->ended(result)) ended(*piece);
    }
    if (!waited) queue_failed(waited.error());
  }
}

// False: nothing will come any more.
bool FileTier::take_posted() {
  std::deque<JobPtr> posted, come;
  {
    const std::lock_guard lock(mutex_);
    std::swap(posted, posted_);
    std::swap(come, come_);
    if (stopping_ && jobs_ == 0) return false;
  }
  for (JobPtr& job : posted) begin(std::move(job));
  for (JobPtr& job : come) has_come(std::move(job));
  return true;
}

void FileTier::begin(JobPtr job) {
  if (job->transfer.host == nullptr) return read_into_frame(std::move(job));
  job->issued_bytes = 0;
  job->error.reset();
  job->direct = job->file->direct();
  job->piece_bytes = even_request_bytes(bytes_to_read(*job), std::min(config_.piece_bytes, job->file->request_bytes()));
  ++job->tries;
  sending_.push_back(job.get());
  active_.push_back(std::move(job));
}

// Once: whoever asked can have the page through host memory, where it is tried again.
void FileTier::read_into_frame(JobPtr job) {
  FrameReader::Read read;
  read.file = job->file->for_frames();
  read.offset = job->begin;
  read.bytes = job->transfer.bytes;
  read.frame = job->transfer.frame;
  read.device = job->transfer.device;
  read.done = [this, job = std::move(job)](Status status) mutable {
    if (!status) job->error = std::move(status).error();
    const std::lock_guard lock(mutex_);
    come_.push_back(std::move(job));
    queue_->wake();
  };
  config_.frame_reader->post(std::move(read));
}

void FileTier::has_come(JobPtr job) {
  // Looked at after the bytes were read, as below.
  auto change = job->file->change();
  if (!change && !job->error && job->file->doubted())
    job->error = {VMEM_ERROR_UNSUPPORTED, 0, job->file->path() + " has to be compared with what was read before"};
  const Outcome outcome = change ? Outcome::lost : job->error ? Outcome::failed : Outcome::done;
  if (change) job->error = std::move(change);
  complete(std::move(job), outcome);
}

// Pages one after the other, so that the eldest is whole first.
void FileTier::pump() {
  pieces_->go_on();
  while (pieces_->room() && !sending_.empty()) {
    if (!push_next_piece(*sending_.front())) sending_.pop_front();
  }
}

// Whole blocks, over the range's end: into the page's rest, which is filled with zeros later.
std::uint64_t FileTier::bytes_to_read(const Job& job) { return block_up(job.end) - job.begin; }

// False: that was the last one.
bool FileTier::push_next_piece(Job& job) {
  Pieces::Piece piece;
  piece.owner = &job;
  piece.io.kind = Io::Kind::read;
  piece.io.file = std::uint32_t(job.file->descriptor());
  piece.io.offset = job.begin + job.issued_bytes;
  piece.io.memory = job.transfer.host + job.issued_bytes;
  piece.io.bytes = std::uint32_t(std::min<std::uint64_t>(job.piece_bytes, bytes_to_read(job) - job.issued_bytes));
  piece.needed = std::uint32_t(std::min<std::uint64_t>(piece.io.bytes, job.end - piece.io.offset));
  job.issued_bytes += piece.io.bytes;
  ++job.under_way;
  pieces_->push(piece);
  return job.issued_bytes < bytes_to_read(job);
}

void FileTier::ended(const Pieces::Ended& ended) {
  const Io& io = ended.piece.io;
  Job& job = *static_cast<Job*>(ended.piece.owner);
  if (!job.error && ended.short_of) job.error = job.file->ended_at(io.offset);
  if (!job.error && ended.error != 0) {
    job.error = Error{VMEM_ERROR_DRIVER, ended.error,
                      fmt::format("reading {} at {} of {}: {} ({} tries)", format_bytes(io.bytes), io.offset,
                                  job.file->path(), std::strerror(ended.error), kTries)};
  }
  --job.under_way;
  if (job.under_way == 0 && job.issued_bytes == bytes_to_read(job)) all_pieces_ended(job);
}

void FileTier::all_pieces_ended(Job& job) {
  const auto found = std::ranges::find_if(active_, [&](const JobPtr& each) { return each.get() == &job; });
  JobPtr taken = std::move(*found);
  *found = std::move(active_.back());
  active_.pop_back();
  // Looked at after the bytes were read: if the file is as it was, so are they.
  if (auto change = job.file->change()) {
    job.error = std::move(change);
    return complete(std::move(taken), Outcome::lost);
  }
  if (!job.error) job.error = compare_with_first(job);
  if (!job.error) {
    const std::uint64_t filled = job.end - job.begin;
    std::memset(job.transfer.host + filled, 0, job.transfer.bytes - filled);
    return complete(std::move(taken), Outcome::done);
  }
  // A file system may let a file be opened for direct I/O and refuse the reads. Pages under way meanwhile find out the same.
  if (job.direct && job.error->native == EINVAL) {
    if (job.file->direct()) {
      VMEM_LOG_INFO("{}: its file system refuses direct reads, they go through the page cache", job.file->path());
      job.file->read_through_page_cache();
    }
    --job.tries;
  }
  if (job.tries < kTries) return begin(std::move(taken));
  complete(std::move(taken), job.error->status == VMEM_ERROR_LOST ? Outcome::lost : Outcome::failed);
}

// Bytes that were read once are the same each time, or lost: of a file whose status alone has changed, nothing else tells.
std::optional<Error> FileTier::compare_with_first(const Job& job) {
  std::optional<std::uint64_t>& first = (*job.sums)[job.page];
  if (first && !job.file->doubted()) return std::nullopt;
  const std::uint64_t sum = XXH3_64bits(job.transfer.host, job.end - job.begin);
  if (!first) first = sum;
  if (*first == sum) return std::nullopt;
  return job.file->other_bytes(job.begin, job.end);
}

void FileTier::complete(JobPtr job, Outcome outcome) {
  Completion completion;
  completion.id = job->transfer.id;
  completion.outcome = outcome;
  if (outcome != Outcome::done) completion.error = *job->error;
  {
    const std::lock_guard lock(mutex_);
    completions_.push_back(std::move(completion));
    --jobs_;
    last_moved_ = std::chrono::steady_clock::now();
    job_ended_.notify_all();
  }
  if (!quarantined()) config_.on_ready();  // whoever wants to be told may be gone by then
}

// The kernel takes no requests any more; what was not sent fails, what is under way will end.
void FileTier::queue_failed(const Error& error) {
  if (const auto failure = queue_failures_.next(); failure.logged)
    VMEM_LOG_ERROR("mapped files cannot be read: {} ({} such failures)", error.message, failure.count);
  const auto fail_job = [&](Job& job) {
    if (!job.error) job.error = error;
    job.tries = kTries;
  };
  for (Job* job : std::exchange(sending_, {})) {
    fail_job(*job);
    job->issued_bytes = bytes_to_read(*job);
    if (job->under_way == 0) all_pieces_ended(*job);
  }
  for (const Pieces::Piece& piece : pieces_->give_up()) {
    Job& job = *static_cast<Job*>(piece.owner);
    fail_job(job);
    if (--job.under_way == 0) all_pieces_ended(job);
  }
}

}  // namespace vmem::tiers
