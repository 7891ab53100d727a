#include "tiers/file/file_tier.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/log.hpp"
#include "base/sizes.hpp"
#include "tiers/io/frame_reader.hpp"

namespace vmem::tiers {

class FileTier::Source final : public PageSource {
 public:
  Source(FileTier& tier, std::shared_ptr<MappedFile> file) : tier_(tier), file_(std::move(file)) {}
  ~Source() override {
    if (first_) tier_.layouts_.forget(*first_);
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  std::string name() const override { return file_->path(); }
  std::uint64_t head_bytes() const override { return file_->begin() - FileLayouts::first_byte(*file_); }
  std::uint64_t bytes() const override { return file_->end() - FileLayouts::first_byte(*file_); }
  Result<SlotId> lay_out(std::uint64_t page_bytes, std::uint32_t count) override {
    VMEM_ASSIGN(first_, tier_.layouts_.lay_out(file_, page_bytes, count));
    return *first_;
  }

 private:
  FileTier& tier_;
  const std::shared_ptr<MappedFile> file_;
  std::optional<SlotId> first_;
};

FileTier::~FileTier() {
  finish();
  loads_.reset();
  thread_.reset();
  layouts_.clear();
  if (!closing_->finish(config_.answer_wait) && config_.frame_reader) keep_for_good(config_.frame_reader);
}

Result<std::shared_ptr<PageSource>> FileTier::map(const std::string& path, std::uint64_t offset, std::uint64_t bytes) {
  VMEM_ASSIGN(std::shared_ptr<MappedFile> file, open(path, offset, bytes));
  VMEM_TRY(start());
  VMEM_LOG_INFO(
      "mapped {} of {}: reads {}", format_bytes(file->end() - file->begin()), path,
      file->direct() ? "pass by the page cache" : "go through the page cache, its file system has no direct I/O");
  // Only whole pages are read straight into frames.
  const bool has_pages = file->end() - FileLayouts::first_byte(*file) >= pagetable::kGranuleBytes;
  if (config_.frame_reader && has_pages) VMEM_TRY(try_frames(*file));
  return std::make_shared<Source>(*this, std::move(file));
}

// The deleter closes the file on another thread: the last owner, e.g. the mover, must not block on
// the file system.
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
  const std::lock_guard lock(starting_);
  if (thread_) return {};
  VMEM_ASSIGN(std::unique_ptr<IoQueue> queue, config_.make_queue());
  thread_ = std::make_unique<IoThread>(IoThread::Config{
      .name = "vmem-file", .failure = "mapped files cannot be read", .queue = std::move(queue), .ledger = &ledger_});
  loads_ = std::make_unique<FileLoads>(config_.piece_bytes, config_.frame_reader.get(), *thread_, ledger_);
  return {};
}

std::string FileTier::describe() const {
  const std::lock_guard lock(starting_);
  return thread_->describe();
}

// ---- the mover's calls ----

// False for the page with the range's end, whose rest must be zeroed, and for an unverified file,
// whose bytes must be compared: both are possible only in host memory.
bool FileTier::loads_into_frames(SlotId slot, int device) const {
  if (config_.frame_reader == nullptr) return false;
  const FilePage page = layouts_.page(slot);
  const FrameReader::File* const file = page.file->for_frames();
  return file != nullptr && page.whole && !page.file->doubted() && file->reaches(device);
}

Status FileTier::submit(std::span<Transfer> transfers) {
  for (const Transfer& transfer : transfers) {
    if (transfer.direction == Direction::load) continue;
    return fail(VMEM_ERROR_INTERNAL, "a page of a mapped file was to be stored; they are only read");
  }
  for (Transfer& transfer : transfers) {
    transfer.id = ledger_.begin(Direction::load, [&](std::uint64_t id) {
      Transfer accepted = transfer;
      accepted.id = id;
      loads_->post(accepted, layouts_.page(transfer.slot));
    });
  }
  return {};
}

Status FileTier::poll(std::vector<Completion>& completions) {
  ledger_.poll(completions);
  return {};
}

Finished FileTier::finish() noexcept {
  return ledger_.finish(config_.answer_wait,
                        "a mapped file's disk does not answer: the memory of pages on their way is left to the system");
}

std::string FileTier::where(SlotId slot) const { return layouts_.page(slot).file->path(); }

}  // namespace vmem::tiers
