#include "tiers/disk/disk_tier.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/aside.hpp"
#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "base/options.hpp"
#include "tiers/disk/request_size.hpp"

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kBlockBytes = kHeaderBytes;  // what direct I/O comes in
constexpr std::uint32_t kTries = 3;                  // of a transfer that a disk fails or damages
constexpr std::chrono::seconds kLongestWait{1};      // somebody would have to forget to wake us
constexpr std::chrono::seconds kFullFor{1};          // before a disk that was full is asked again
constexpr std::uint64_t kLeastHole = 16;             // a part of the page: smaller ones are left
constexpr double kTight = 0.85;  // filled so far, a tier gives back what compressed pages leave free

std::span<std::byte, kHeaderBytes> block(std::byte* memory) {
  return std::span<std::byte, kHeaderBytes>(memory, kHeaderBytes);
}

// Where pages are compressed, one for each worker and one on the path: compressing one takes longer than its way.
std::uint32_t busy_pages(const DiskTier::Config& config) {
  const std::uint32_t usual = TierInfo{}.busy_pages;
  return config.compression.on ? std::max(usual, config.workers + 1) : usual;
}

}  // namespace

DiskTier::DiskTier(Config config)
    : config_(std::move(config)),
      info_{.name = "nvme", .busy_pages = busy_pages(config_)},
      codec_(config_.compression, kHeaderBytes),
      stages_{{Staging(info_.busy_pages * kStagingBytes), {}}, {Staging(info_.busy_pages * kStagingBytes), {}}} {}

Result<std::unique_ptr<DiskTier>> DiskTier::create(Config config) {
  std::unique_ptr<DiskTier> tier(new DiskTier(std::move(config)));
  VMEM_TRY(tier->open());
  return tier;
}

std::uint32_t DiskTier::default_workers() { return std::clamp(std::thread::hardware_concurrency() * 3 / 4, 2u, 16u); }

Status DiskTier::open() {
  VMEM_ASSIGN(files_, SlotFiles::create(config_.directories, config_.answer_wait));
  VMEM_ASSIGN(queue_, config_.make_queue(files_->descriptors()));
  if (config_.frame_reader) VMEM_TRY(try_frames());
  pieces_.resize(queue_->depth());
  for (std::uint32_t tag = queue_->depth(); tag > 0; --tag) free_tags_.push_back(tag - 1);
  io_thread_ = std::thread([this] { run(); });
  for (std::uint32_t i = 0; i < config_.workers; ++i) workers_.emplace_back([this] { work(); });
  return {};
}

Status DiskTier::try_frames() {
  for (const int descriptor : files_->descriptors()) {
    const std::string& path = files_->path(std::uint32_t(for_frames_.size()));
    auto opened = open_within(config_.answer_wait, config_.frame_reader, descriptor);
    if (!opened)
      return fail(VMEM_ERROR_TIMEOUT,
                  fmt::format("--nvme {}: its file system did not answer a read straight to HBM within {}", path,
                              exact_duration_us(std::uint64_t(config_.answer_wait.count()))));
    VMEM_LOG_INFO("pages in {} {}", path,
                  *opened ? "can go straight to HBM by " + config_.frame_reader->describe()
                          : "come through host memory: " + opened->error().message);
    for_frames_.push_back(*opened ? **std::move(opened) : nullptr);
  }
  return {};
}

DiskTier::~DiskTier() {
  finish();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_wanted_.notify_all();
  if (queue_) queue_->wake();
  if (io_thread_.joinable()) io_thread_.join();
  for (std::thread& worker : workers_) worker.join();
}

std::string DiskTier::describe() const { return queue_->describe(); }

std::uint64_t DiskTier::punched_bytes() const {
  const std::lock_guard lock(mutex_);
  return punched_bytes_;
}

std::uint64_t DiskTier::stored_io_bytes(const Job& job) {
  return (job.page.stored_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

PageIdentity DiskTier::identity_of(const Transfer& transfer) const {
  return {transfer.page, transfer.version, transfer.bytes, config_.tenant};
}

// ---- the mover's calls ----

TierUsage DiskTier::usage() const {
  const std::lock_guard lock(mutex_);
  return {files_->budget_bytes(), files_->used_bytes(), files_->ready_bytes()};
}

std::vector<std::uint64_t> DiskTier::places() const {
  const std::lock_guard lock(mutex_);
  return files_->budgets();
}

Result<SlotGrant> DiskTier::allocate(std::uint64_t page_bytes) {
  const std::lock_guard lock(mutex_);
  if (const auto slot = files_->take(page_bytes)) {
    growth_error_.reset();
    if (!growing_ && files_->uneven(page_bytes)) want_growth(page_bytes);
    return SlotGrant{Grant::granted, *slot};
  }
  if (auto error = files_->out_of_service()) return std::unexpected(*std::move(error));
  // Where one directory failed to grow another one may.
  if (!growing_) want_growth(page_bytes);
  if (!growing_ && shrinking_ == 0) want_shrinking(page_bytes);
  // A chunk that a worker is punching out may leave room for one of this page size.
  if (growing_ || shrinking_ != 0) return SlotGrant{Grant::later, 0};
  if (growth_error_) return std::unexpected(*std::exchange(growth_error_, std::nullopt));
  return SlotGrant{Grant::full, 0};
}

void DiskTier::release(SlotId slot) {
  const std::lock_guard lock(mutex_);
  plain_.erase(slot);
  files_->give_back(slot);
  want_shrinking();
}

// What lies in a directory that cannot be read any more has to stay where else it is.
bool DiskTier::kept(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  return !files_->unreadable(slot);
}

bool DiskTier::reaches(SlotId slot, int device) const {
  if (for_frames_.empty()) return false;
  const std::lock_guard lock(mutex_);
  if (!plain_.contains(slot)) return false;
  const auto& file = for_frames_[files_->place(slot).file];
  return file != nullptr && file->reaches(device);
}

Status DiskTier::submit(std::span<Transfer> transfers) {
  for (Transfer& transfer : transfers) transfer.id = 0;
  Status result;
  const std::lock_guard lock(mutex_);
  for (Transfer& transfer : transfers) {
    auto job = std::make_unique<Job>();
    job->header.reset(static_cast<std::byte*>(std::aligned_alloc(kHeaderBytes, kHeaderBytes)));
    if (!job->header) {
      result = fail(VMEM_ERROR_OUT_OF_MEMORY,
                    fmt::format("no memory for {} to send a page of {} with; it stays where it is",
                                format_bytes(kHeaderBytes), format_bytes(transfer.bytes)),
                    ENOMEM);
      break;
    }
    const std::uint64_t id = next_transfer_id();
    job->transfer = transfer;
    job->transfer.id = id;
    job->place = files_->place(transfer.slot);
    posted_.push_back(std::move(job));
    transfer.id = id;
    if (transfer.direction == Direction::store) plain_.erase(transfer.slot);
    ++jobs_;
    last_moved_ = std::chrono::steady_clock::now();
    ++(transfer.direction == Direction::load ? loads_ : stores_);
  }
  queue_->wake();
  return result;
}

Status DiskTier::poll(std::vector<Completion>& completions) {
  const std::lock_guard lock(mutex_);
  completions.reserve(completions.size() + completions_.size());
  std::ranges::move(completions_, std::back_inserter(completions));
  completions_.clear();
  return {};
}

void DiskTier::finish() noexcept {
  std::unique_lock lock(mutex_);
  changes_.clear();  // of space that nobody wants any more; the files go
  while ((jobs_ != 0 || changing_ != 0) && !quarantined_) {
    const auto until = last_moved_ + config_.answer_wait;
    if (std::chrono::steady_clock::now() < until) {
      job_ended_.wait_until(lock, until);
      continue;
    }
    quarantined_ = true;
    log::write_plain("a disk does not answer: the memory of pages on their way to and from it is left to the system");
  }
}

bool DiskTier::quarantined() const noexcept {
  const std::lock_guard lock(mutex_);
  return quarantined_;
}

std::string DiskTier::where(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  return files_->path(files_->place(slot).file);
}

// ---- the I/O thread ----

void DiskTier::run() {
  ::prctl(PR_SET_NAME, "vmem-disk");
  MemoryReserve reserve;
  std::vector<IoResult> results;
  waited_until_ns_ = codec_.now_ns();
  while (take_inbox()) {
    (void)reserve.refill();
    pump();
    results.clear();
    auto waited = queue_->wait(results, kLongestWait);
    waited_until_ns_ = codec_.now_ns();
    for (const IoResult& result : results) ended(result);
    if (!waited) queue_failed(waited.error());
  }
}

// False: nothing will come any more.
bool DiskTier::take_inbox() {
  std::deque<JobPtr> posted, worked_on;
  {
    const std::lock_guard lock(mutex_);
    std::swap(posted, posted_);
    std::swap(worked_on, worked_);
    if (stopping_ && jobs_ == 0) return false;
  }
  for (JobPtr& job : posted) start(std::move(job));
  for (JobPtr& job : worked_on) worked(std::move(job));
  return true;
}

void DiskTier::start(JobPtr job) {
  const bool load = job->transfer.direction == Direction::load;
  if (const auto known = stored_.find(job->transfer.slot); known != stored_.end()) {
    job->page = known->second;
    job->known = job->page.identity == identity_of(job->transfer);
  }
  const auto hole = punched_.find(job->transfer.slot);
  job->allocated_bytes = hole == punched_.end() ? slot_io_bytes(*job) : std::min(hole->second, slot_io_bytes(*job));
  if (load && !job->known) {
    job->error =
        Error{VMEM_ERROR_LOST, 0, fmt::format("no page of that version was stored in slot {}", job->transfer.slot)};
    return complete(std::move(job), Outcome::lost);
  }
  if (load && job->transfer.host == nullptr) return read_into_frame(std::move(job));
  const bool staged = load ? is_compressed(*job) : codec_.on();
  if (staged) return stage(std::move(job));
  load ? begin_io(std::move(job)) : hand_to_worker(std::move(job));
}

// The bytes alone, once: whoever asked compares them with what is known of them, and can have the page through host memory.
void DiskTier::read_into_frame(JobPtr job) {
  FrameReader::Read read;
  read.file = for_frames_[job->place.file].get();
  read.offset = job->place.bytes;
  read.bytes = job->transfer.bytes;
  read.frame = job->transfer.frame;
  read.device = job->transfer.device;
  read.done = [this, job = std::move(job)](Status status) mutable {
    if (!status) job->error = std::move(status).error();
    const std::lock_guard lock(mutex_);
    worked_.push_back(std::move(job));
    queue_->wake();
  };
  config_.frame_reader->post(std::move(read));
}

// Where all staging is taken the path has enough to do, and pages wait in their order.
void DiskTier::stage(JobPtr job) {
  const Direction direction = job->transfer.direction;
  stages_[std::size_t(direction)].waiting.push_back(std::move(job));
  serve_staging(direction);
}

void DiskTier::unstage(Job& job) {
  if (!job.staged) return;
  stages_[std::size_t(job.transfer.direction)].memory.give_back(std::exchange(job.staged, {}));
  serve_staging(job.transfer.direction);
}

void DiskTier::serve_staging(Direction direction) {
  Stage& stage = stages_[std::size_t(direction)];
  while (!stage.waiting.empty()) {
    Staging::Buffer buffer = stage.memory.take(slot_io_bytes(*stage.waiting.front()));
    if (!buffer && stage.memory.out() != 0) return;
    JobPtr job = std::move(stage.waiting.front());
    stage.waiting.pop_front();
    job->staged = std::move(buffer);
    if (direction == Direction::store) {
      hand_to_worker(std::move(job));  // without staging, where there is no memory for it, the page goes as it is
    } else if (job->staged) {
      begin_io(std::move(job));
    } else {
      job->error =
          Error{VMEM_ERROR_OUT_OF_MEMORY, ENOMEM,
                fmt::format("no memory to read a compressed page of {} into", format_bytes(job->transfer.bytes))};
      complete(std::move(job), Outcome::failed);
    }
  }
}

void DiskTier::hand_to_worker(JobPtr job) {
  const std::lock_guard lock(mutex_);
  to_work_.push_back(std::move(job));
  work_wanted_.notify_one();
}

// A page was sealed and brought into its form, or brought back and checked; or a hole was made behind it.
void DiskTier::worked(JobPtr job) {
  const bool load = job->transfer.direction == Direction::load;
  if (load && job->damaged) return try_again_or_fail(std::move(job), Outcome::lost);
  if (job->error) return complete(std::move(job), Outcome::failed);
  if (load && job->transfer.host == nullptr) return complete(std::move(job), Outcome::done);
  if (job->allocated_bytes < slot_io_bytes(*job)) {
    punched_[job->transfer.slot] = job->allocated_bytes;
  } else {
    punched_.erase(job->transfer.slot);
  }
  if (load) note_read(*job, Outcome::done);
  if (load || job->written) return complete(std::move(job), Outcome::done);
  if (job->unchanged && kept(job->transfer.slot)) return complete(std::move(job), Outcome::done);
  if (auto refused = refusal_of(*job)) {
    job->error = std::move(refused);
    return complete(std::move(job), Outcome::failed);
  }
  // What the slot held is gone from here on.
  stored_.erase(job->transfer.slot);
  if (!is_compressed(*job)) unstage(*job);
  begin_io(std::move(job));
}

void DiskTier::begin_io(JobPtr job) {
  job->issued_bytes = 0;
  job->error.reset();
  job->damaged = false;
  ++job->tries;
  const std::uint32_t most = std::min(config_.piece_bytes, files_->request_bytes(job->place.file));
  job->piece_bytes = even_request_bytes(kHeaderBytes + stored_io_bytes(*job), most);
  sending_.push_back(job.get());
  active_.push_back(std::move(job));
}

// Pages one after the other, so that the eldest is whole first.
void DiskTier::pump() {
  while (!free_tags_.empty() && !again_.empty()) {
    push(again_.front());
    again_.pop_front();
  }
  while (!free_tags_.empty() && !sending_.empty()) {
    if (!push_next_piece(*sending_.front())) sending_.pop_front();
  }
}

// False: that was the last one.
bool DiskTier::push_next_piece(Job& job) {
  Piece piece{&job, {}};
  piece.io.kind = job.transfer.direction == Direction::load ? Io::Kind::read : Io::Kind::write;
  piece.io.file = job.place.file;
  const std::uint64_t at = job.issued_bytes, all = kHeaderBytes + stored_io_bytes(job);
  piece.io.offset = job.place.header + at;
  piece.io.bytes = std::uint32_t(std::min<std::uint64_t>(job.piece_bytes, all - at));
  if (job.staged) {
    piece.io.memory = job.staged.data() + at;
  } else if (at == 0) {
    piece.io.head = job.header.get();
    piece.io.head_bytes = kHeaderBytes;
    piece.io.memory = job.transfer.host;
  } else {
    piece.io.memory = job.transfer.host + (at - kHeaderBytes);
  }
  job.issued_bytes += piece.io.bytes;
  ++job.under_way;
  push(piece);
  return job.issued_bytes < all;
}

void DiskTier::push(const Piece& piece) {
  const std::uint32_t tag = free_tags_.back();
  free_tags_.pop_back();
  pieces_[tag] = piece;
  pieces_[tag].io.tag = tag;
  queue_->push(pieces_[tag].io);
  if (!codec_.on()) return;
  rate_of(piece.io.kind).begins(piece.io.bytes, waited_until_ns_);
  tell_rates();
}

PathRate& DiskTier::rate_of(Io::Kind kind) { return kind == Io::Kind::read ? reading_ : writing_; }

void DiskTier::note_rate(Io::Kind kind, std::uint64_t bytes, std::uint64_t moved_bytes) {
  rate_of(kind).ends(bytes, moved_bytes, waited_until_ns_);
  tell_rates();
}

void DiskTier::tell_rates() {
  const std::uint64_t measurements = writing_.measurements() + reading_.measurements();
  if (std::exchange(told_measurements_, measurements) == measurements) return;
  const std::lock_guard lock(mutex_);
  write_bytes_s_ = writing_.bytes_s();
  read_bytes_s_ = reading_.bytes_s();
  write_measurements_ = writing_.measurements();
}

void DiskTier::ended(const IoResult& result) {
  Piece piece = pieces_[result.tag];
  free_tags_.push_back(std::uint32_t(result.tag));
  Job& job = *piece.job;
  const bool read = piece.io.kind == Io::Kind::read;
  if (codec_.on()) {
    const auto arrived = std::uint64_t(std::max<std::int64_t>(result.result, 0));
    note_rate(piece.io.kind, piece.io.bytes, arrived);
  }
  if (result.result == -EINTR || result.result == -EAGAIN) {
    again_.push_back(piece);
    return;
  }
  const auto moved = std::uint64_t(std::max<std::int64_t>(result.result, 0)) / kBlockBytes * kBlockBytes;
  if (result.result >= 0 && result.result < piece.io.bytes && moved != 0) {
    // Went on only so far; the rest is asked for again.
    piece.io.advance(std::uint32_t(moved));
    again_.push_back(piece);
    return;
  }
  if (result.result < piece.io.bytes && !job.error) {
    const int error = result.result < 0 ? int(-result.result) : read ? ENODATA : ENOSPC;
    const bool full = error == ENOSPC || error == EDQUOT;
    job.error = Error{
        full ? VMEM_ERROR_OUT_OF_MEMORY : VMEM_ERROR_DRIVER, error,
        fmt::format("{} {} at {} of the file in {}: {}", read ? "reading" : "writing", format_bytes(piece.io.bytes),
                    piece.io.offset, files_->path(piece.io.file), std::strerror(error))};
  }
  --job.under_way;
  if (job.under_way == 0 && job.issued_bytes == kHeaderBytes + stored_io_bytes(job)) all_pieces_ended(job);
}

DiskTier::JobPtr DiskTier::take_active(Job& job) {
  const auto found = std::ranges::find_if(active_, [&](const JobPtr& each) { return each.get() == &job; });
  JobPtr taken = std::move(*found);
  *found = std::move(active_.back());
  active_.pop_back();
  return taken;
}

void DiskTier::all_pieces_ended(Job& job) {
  JobPtr taken = take_active(job);
  if (job.error) return try_again_or_fail(std::move(taken), Outcome::failed);
  if (job.transfer.direction == Direction::load) return hand_to_worker(std::move(taken));
  stored_[job.transfer.slot] = job.page;
  if (!job.punch) return complete(std::move(taken), Outcome::done);
  job.written = true;
  unstage(job);
  hand_to_worker(std::move(taken));
}

// What one more try may mend: an error on the way, or bytes damaged on the way. A full disk stays full, and nothing is written to a
// directory out of service.
void DiskTier::try_again_or_fail(JobPtr job, Outcome outcome) {
  const bool full = job->error && job->error->status == VMEM_ERROR_OUT_OF_MEMORY && job->error->native != ENOMEM;
  if (job->tries < kTries && !full && !refusal_of(*job)) return begin_io(std::move(job));
  if (job->transfer.direction == Direction::store && job->error) writing_failed(job->place.file, *job->error);
  if (job->transfer.direction == Direction::load) note_read(*job, outcome);
  if (job->damaged) {
    job->error =
        Error{VMEM_ERROR_LOST, 0,
              fmt::format("what the file in {} holds at {} is not what was written there: its checksum differs",
                          files_->path(job->place.file), job->place.bytes)};
  }
  complete(std::move(job), outcome);
}

void DiskTier::complete(JobPtr job, Outcome outcome) {
  Completion completion;
  completion.id = job->transfer.id;
  completion.outcome = outcome;
  completion.changed = job->transfer.if_changed && !job->unchanged;
  const bool load = job->transfer.direction == Direction::load;
  if (outcome != Outcome::done) completion.error = *job->error;
  unstage(*job);
  {
    const std::lock_guard lock(mutex_);
    if (!load && outcome == Outcome::done && !is_compressed(*job)) plain_.insert(job->transfer.slot);
    completions_.push_back(std::move(completion));
    --jobs_;
    --(load ? loads_ : stores_);
    last_moved_ = std::chrono::steady_clock::now();
    job_ended_.notify_all();
  }
  tell_ready();
}

// The kernel takes no requests any more; what was not sent fails, what is under way will end.
void DiskTier::queue_failed(const Error& error) {
  if (const auto failure = queue_failures_.next(); failure.logged)
    VMEM_LOG_ERROR("the disk tier cannot send requests: {} ({} such failures)", error.message, failure.count);
  again_.clear();
  for (Job* job : std::exchange(sending_, {})) {
    job->error = error;
    job->tries = kTries;
    job->issued_bytes = kHeaderBytes + stored_io_bytes(*job);
    if (job->under_way == 0) all_pieces_ended(*job);
  }
}

// ---- workers ----

void DiskTier::work() {
  ::prctl(PR_SET_NAME, "vmem-disk-work");
  MemoryReserve reserve;
  compress::Workspace workspace;
  std::unique_lock lock(mutex_);
  for (;;) {
    work_wanted_.wait(lock, [&] { return stopping_ || !to_work_.empty() || !changes_.empty(); });
    if (stopping_ && to_work_.empty() && changes_.empty()) return;
    if (!changes_.empty()) {
      const SlotFiles::Change change = changes_.front();
      changes_.pop_front();
      ++changing_;
      last_moved_ = std::chrono::steady_clock::now();
      lock.unlock();
      carry_out(change);
      lock.lock();
      --changing_;
      job_ended_.notify_all();
      continue;
    }
    JobPtr job = std::move(to_work_.front());
    to_work_.pop_front();
    const Scene scene = scene_for(*job);
    lock.unlock();
    (void)reserve.refill();
    const bool worked = had_memory([&] { work_on(*job, scene, workspace); });
    if (!worked) {
      job->error = Error{VMEM_ERROR_OUT_OF_MEMORY, ENOMEM,
                         fmt::format("no memory to {} a page of {}",
                                     job->transfer.direction == Direction::load ? "decompress" : "compress",
                                     format_bytes(job->transfer.bytes))};
    }
    lock.lock();
    worked_.push_back(std::move(job));
    queue_->wake();
  }
}

// REQUIRES: mutex_. As many workers compress as there are pages to do it to beside the one on the path: of a single page the way would become
// longer, not faster. Where pages go both ways the workers are shared. Reads are taken to be as fast as writes until some were measured.
DiskTier::Scene DiskTier::scene_for(const Job& job) const {
  const std::uint32_t workers = loads_ != 0 && stores_ != 0 ? std::max(config_.workers / 2, 1u) : config_.workers;
  const std::uint64_t beside = stores_ == 0 ? 0 : stores_ - 1;
  Scene scene;
  scene.now = {.page_bytes = job.transfer.bytes,
               .write_bytes_s = write_bytes_s_,
               .read_bytes_s = read_bytes_s_ == 0 ? write_bytes_s_ : read_bytes_s_,
               .compressors = std::uint32_t(std::min<std::uint64_t>(workers, beside)),
               .decompressors = workers,
               .fill = files_->fill()};
  scene.write_measurements = write_measurements_;
  return scene;
}

void DiskTier::work_on(Job& job, const Scene& scene, compress::Workspace& workspace) {
  if (job.transfer.direction == Direction::load) return check_load(job, workspace);
  job.written ? punch(job) : prepare_store(job, scene, workspace);
}

void DiskTier::check_load(Job& job, compress::Workspace& workspace) {
  const std::span<std::byte> bytes(job.transfer.host, job.transfer.bytes);
  std::byte* const header = job.staged ? job.staged.data() : job.header.get();
  job.damaged = read_header(block(header)) != job.page;
  if (!job.damaged && is_compressed(job)) {
    const auto decoded = codec_.decode({.stored = {header + kHeaderBytes, job.page.stored_bytes},
                                        .page = bytes,
                                        .codec = compress::CodecId(job.page.codec),
                                        .kind = job.transfer.kind},
                                       workspace);
    job.damaged = !decoded && decoded.error().status == VMEM_ERROR_LOST;
    if (!decoded && !job.damaged) job.error = decoded.error();
  }
  if (job.damaged || job.error) return;
  job.damaged = seal(bytes, job.page.identity) != job.page.checksum;
}

void DiskTier::prepare_store(Job& job, const Scene& scene, compress::Workspace& workspace) {
  const PageIdentity identity = identity_of(job.transfer);
  const std::span<const std::byte> bytes(job.transfer.host, job.transfer.bytes);
  const std::uint64_t began_ns = codec_.now_ns();
  const Checksum checksum = seal(bytes, identity);
  job.unchanged = job.transfer.if_changed && job.known && checksum == job.page.checksum;
  if (job.unchanged) return;
  job.page = {identity, job.transfer.bytes, 0, checksum};
  std::byte* header = job.header.get();
  if (job.staged) {
    std::byte* const out = job.staged.data() + kHeaderBytes;
    const auto form = codec_.encode({.page = bytes,
                                     .out = {out, job.transfer.bytes},
                                     .kind = job.transfer.kind,
                                     .now = scene.now,
                                     .measurements = scene.write_measurements,
                                     .other_s = double(codec_.now_ns() - began_ns) * 1e-9},
                                    workspace);
    job.page.codec = std::uint8_t(form.codec);
    job.page.stored_bytes = form.bytes;
    if (is_compressed(job)) {
      header = job.staged.data();
      std::memset(out + form.bytes, 0, stored_io_bytes(job) - form.bytes);
    }
  }
  write_header(job.page, block(header));
  const std::uint64_t needed = kHeaderBytes + stored_io_bytes(job);
  if (needed > job.allocated_bytes) {
    const auto filled = files_->fill_hole(job.place, job.allocated_bytes, needed - job.allocated_bytes);
    if (!filled) job.error = filled.error();
    if (!filled) writing_failed(job.place.file, filled.error());
    if (filled) job.allocated_bytes = needed;
  }
  const bool worth_it = job.allocated_bytes >= needed + job.transfer.bytes / kLeastHole;
  job.punch = is_compressed(job) && worth_it && scene.now.fill >= kTight;
}

void DiskTier::punch(Job& job) {
  const std::uint64_t kept = kHeaderBytes + stored_io_bytes(job), freed = job.allocated_bytes - kept;
  const auto punched = files_->punch(job.place, kept, freed);
  if (!punched) {
    writing_failed(job.place.file, punched.error());
    const std::lock_guard lock(mutex_);
    change_failed("keeps space it does not use", punched.error());
    return;
  }
  job.allocated_bytes = kept;
  const std::lock_guard lock(mutex_);
  punched_bytes_ += freed;
}

// Any thread. An error that says that the directory's file system failed takes the directory out of service.
void DiskTier::writing_failed(std::uint32_t file, const Error& error) {
  if (!SlotFiles::ends_service(error.native)) return;
  {
    const std::lock_guard lock(mutex_);
    if (!files_->retire(file, error)) return;
  }
  VMEM_LOG_ERROR("nothing more is written to {}, whose pages stay readable while it answers: {}", files_->path(file),
                 error.message);
}

// A disk from which one page after the other cannot be read takes no more, either.
void DiskTier::note_read(const Job& job, Outcome outcome) {
  const bool failed = outcome == Outcome::failed && job.error && SlotFiles::ends_service(job.error->native);
  bool dead = false;
  {
    const std::lock_guard lock(mutex_);
    dead = files_->note_read(job.place.file, failed);
  }
  if (!dead) return;
  VMEM_LOG_ERROR("pages in {} cannot be read: {}", files_->path(job.place.file), job.error->message);
  writing_failed(job.place.file, *job.error);
}

// Why a store that needs to be written is not: its directory is out of service.
std::optional<Error> DiskTier::refusal_of(const Job& job) const {
  if (job.transfer.direction != Direction::store) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return files_->retired(job.place.file);
}

void DiskTier::carry_out(SlotFiles::Change change) {
  const bool growth = change.kind == SlotFiles::Change::Kind::allocate;
  auto done = files_->carry_out(change);
  if (!done) writing_failed(change.file, done.error());
  {
    const std::lock_guard lock(mutex_);
    files_->settle(change, done.has_value());
    if (growth) growing_ = false;
    if (!growth) --shrinking_;
    if (growth && !done) {
      full_since_ = std::chrono::steady_clock::now();
      if (done.error().status != VMEM_ERROR_OUT_OF_MEMORY) growth_error_ = done.error();
    }
    if (!done) change_failed(growth ? "cannot grow" : "keeps space it does not use", done.error());
  }
  tell_ready();
}

// Whoever wants to be told may be gone once the tier is in quarantine.
void DiskTier::tell_ready() {
  if (!quarantined()) config_.on_ready();
}

// REQUIRES: mutex_.
void DiskTier::change_failed(const char* what, const Error& error) {
  if (const auto failure = change_failures_.next(); failure.logged)
    VMEM_LOG_WARN("the disk tier {}: {} ({} such failures)", what, error.message, failure.count);
}

// REQUIRES: mutex_.
void DiskTier::want_growth(std::uint64_t page_bytes) {
  const auto now = std::chrono::steady_clock::now();
  if (now - full_since_ > kFullFor) files_->try_full_ones();
  const auto change = files_->plan_growth(page_bytes);
  if (!change) return;
  growing_ = true;
  changes_.push_back(*change);
  work_wanted_.notify_one();
}

// REQUIRES: mutex_.
void DiskTier::want_shrinking(std::optional<std::uint64_t> wanted_page_bytes) {
  const auto change = files_->plan_shrinking(wanted_page_bytes);
  if (!change) return;
  ++shrinking_;
  changes_.push_back(*change);
  work_wanted_.notify_one();
}

}  // namespace vmem::tiers
