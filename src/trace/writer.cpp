#include "trace/writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/file_descriptor.hpp"
#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "base/printable.hpp"
#include "base/sizes.hpp"
#include "trace/file.hpp"

namespace vmem::trace {
namespace {

constexpr std::size_t kPathMax = 1000;
constexpr std::uint64_t kEndBytes = 256;  // for the last event
constexpr std::uint64_t kChunkNs = 1'000'000'000;
constexpr std::chrono::seconds kFinishWait{10};
// Empty chunks are allocated ahead, so that the adding thread allocates none. At most kChunksMax
// exist, empty ones and those that wait for the disk.
constexpr std::size_t kSpareChunks = 16, kChunksMax = 64;
using Chunk = std::vector<std::byte>;

Chunk new_chunk() {
  Chunk chunk;
  chunk.reserve(2 * std::size_t{kChunkBytes});
  return chunk;
}

std::vector<std::byte> beginning(const Header& header) {
  std::vector<std::byte> bytes(kMark.size() + sizeof kVersion);
  std::memcpy(bytes.data(), kMark.data(), kMark.size());
  std::memcpy(bytes.data() + kMark.size(), &kVersion, sizeof kVersion);
  const std::vector<std::byte> packed = pack(encode(header));
  bytes.insert(bytes.end(), packed.begin(), packed.end());
  return bytes;
}

}  // namespace

class Writer::File {
 public:
  File(std::string at, FileDescriptor file, std::uint64_t limit_bytes)
      : path(std::move(at)), file_(std::move(file)), limit_bytes_(limit_bytes) {
    for (std::size_t i = 0; i < kSpareChunks; ++i, ++chunks_) spare_.push_back(new_chunk());
  }

  // Any thread.
  void end(End::Why why) noexcept {
    {
      const std::lock_guard lock(mutex_);
      ended = true;
      // Also after stop(): what is still waiting may not fit.
      if (why_ != End::Why::finished) return;
      why_ = why;
    }
    if (why == End::Why::no_memory) return log::write_plain("the trace ends early: the process has no memory for it");
    (void)ran_within_memory([&] {
      VMEM_LOG_WARN("the trace {} ends early, and the program runs on: {}", printable(path, kPathMax), words(why));
    });
  }

  // An empty chunk in exchange for `take()`, which gives a full one; false: none is left.
  template <class Take>
  bool exchange(Take&& take) {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) return false;
    Chunk room = std::move(spare_.back());
    spare_.pop_back();
    waiting_.push_back(take(std::move(room)));
    wanted_.notify_one();
    return true;
  }

  // `last`: the events since the last chunk.
  void stop(Chunk last, std::uint64_t last_ns) {
    std::unique_lock lock(mutex_);
    if (!last.empty() && !ended && !ran_within_memory([&] { waiting_.push_back(std::move(last)); }))
      why_ = End::Why::no_memory;
    last_ns_ = last_ns;
    ended = stopping_ = true;
    wanted_.notify_one();
    if (stopped_.wait_for(lock, kFinishWait, [&] { return done_; })) return;
    lock.unlock();
    VMEM_LOG_WARN("the trace {} is cut short: its disk has not answered for {} s", printable(path, kPathMax),
                  kFinishWait.count());
  }

  // The writing thread.
  void run(const Header& header) {
    ::prctl(PR_SET_NAME, "vmem-trace");
    // Also SIGXFSZ: a file that must not grow is an error here, and not the program's end.
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    MemoryReserve reserve;
    attempt([&] { append(beginning(header)); });
    while (std::optional<Chunk> chunk = next()) {
      (void)reserve.refill();
      if (!broken_ && !full_) attempt([&] { write(*chunk); });
      give_back(std::move(*chunk));
    }
    if (!broken_) attempt([&] { append_end(); });
    const std::lock_guard lock(mutex_);
    done_ = true;
    stopped_.notify_one();
  }

  const std::string path;
  std::atomic<bool> ended{false};  // no more events are wanted

 private:
  template <class Piece>
  void attempt(Piece&& piece) {
    if (ran_within_memory(piece)) return;
    broken_ = true;
    end(End::Why::no_memory);
  }

  std::optional<Chunk> next() {
    std::unique_lock lock(mutex_);
    wanted_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    while (spare_.size() < kSpareChunks && chunks_ < kChunksMax) {
      if (!ran_within_memory([&] { spare_.push_back(new_chunk()); })) break;
      ++chunks_;
    }
    if (waiting_.empty()) return std::nullopt;
    Chunk chunk = std::move(waiting_.front());
    waiting_.pop_front();
    return chunk;
  }
  void give_back(Chunk chunk) {
    chunk.clear();
    const std::lock_guard lock(mutex_);
    // Without memory for the list's entry there is one chunk less.
    (void)ran_within_memory([&] { spare_.push_back(std::move(chunk)); });
  }

  void write(const Chunk& raw) {
    const std::vector<std::byte> packed = pack(raw);
    full_ = written_bytes_ + packed.size() + kEndBytes > limit_bytes_;
    if (full_) return end(End::Why::limit);
    append(packed);
  }
  void append_end() {
    EventEncoder last;
    {
      const std::lock_guard lock(mutex_);
      last.add(last_ns_, End{why_});
    }
    append(pack(last.take()));
  }

  // After an error the file ends where it did before.
  void append(const std::vector<std::byte>& packed) {
    for (std::size_t done = 0; done < packed.size();) {
      const auto at = off_t(written_bytes_ + done);
      const ssize_t wrote = ::pwrite(file_.get(), packed.data() + done, packed.size() - done, at);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) return break_off(wrote < 0 ? errno : EIO);
      done += std::size_t(wrote);
    }
    written_bytes_ += packed.size();
  }
  void break_off(int native) {
    (void)::ftruncate(file_.get(), off_t(written_bytes_));
    broken_ = ended = true;
    VMEM_LOG_ERROR("the trace {} ends after {}, and the program runs on: {}", printable(path, kPathMax),
                   format_bytes(written_bytes_), std::strerror(native));
  }

  const FileDescriptor file_;
  const std::uint64_t limit_bytes_;
  // The writing thread's.
  std::uint64_t written_bytes_ = 0;
  bool full_ = false;    // the limit was reached: only the end is written
  bool broken_ = false;  // nothing more is written
  // Shared.
  std::mutex mutex_;  // guards the members below
  std::condition_variable wanted_, stopped_;
  std::deque<Chunk> waiting_, spare_;
  std::size_t chunks_ = 0;  // made so far
  bool stopping_ = false, done_ = false;
  End::Why why_ = End::Why::finished;
  std::uint64_t last_ns_ = 0;
};

Result<std::unique_ptr<Writer>> Writer::create(const std::string& path, std::uint64_t limit_bytes,
                                               const Header& header) {
  std::string chosen = path;
  const auto open = [&] {
    return FileDescriptor(::open(chosen.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  };
  FileDescriptor file = open();
  const bool further = !file && errno == EEXIST;
  if (further) {
    chosen = fmt::format("{}.{}", path, ::getpid());
    file = open();
  }
  if (!file) {
    const int native = errno;
    std::string why = fmt::format("cannot make the trace {}: {}", printable(chosen, kPathMax), std::strerror(native));
    if (!further) return fail(VMEM_ERROR_INVALID_OPTION, why + "; name a file that can be made with --trace", native);
    VMEM_LOG_WARN("{}; this process runs without one", why);
    return nullptr;
  }
  const auto shared = std::make_shared<File>(chosen, std::move(file), limit_bytes);
  std::unique_ptr<Writer> writer(new Writer(shared));
  try {
    std::thread([shared, header] { shared->run(header); }).detach();
  } catch (const std::system_error& error) {
    ::unlink(chosen.c_str());
    writer->finished_ = true;
    return fail(VMEM_ERROR_OUT_OF_MEMORY, fmt::format("no thread can be had for the trace: {}", error.what()),
                error.code().value());
  }
  return writer;
}

Writer::Writer(std::shared_ptr<File> file) : file_(std::move(file)) { (void)encoder_.take(new_chunk()); }

Writer::~Writer() { finish(); }

bool Writer::ended() const { return file_->ended.load(std::memory_order_relaxed); }
const std::string& Writer::path() const { return file_->path; }
void Writer::end(End::Why why) noexcept { file_->end(why); }

void Writer::add(std::uint64_t at_ns, const Body& body) noexcept {
  if (ended()) return;
  if (encoder_.bytes() == 0) first_ns_ = at_ns;
  last_ns_ = std::max(last_ns_, at_ns);
  if (!ran_within_memory([&] { encoder_.add(at_ns, body); })) return end(End::Why::no_memory);
  if (encoder_.bytes() >= kChunkBytes || last_ns_ - std::min(last_ns_, first_ns_) >= kChunkNs) hand_over();
}

void Writer::hand_over() noexcept {
  const auto take = [this](Chunk room) { return encoder_.take(std::move(room)); };
  bool handed = false;
  if (!ran_within_memory([&] { handed = file_->exchange(take); })) return end(End::Why::no_memory);
  // A chunk with room left can wait for the next try.
  if (!handed && encoder_.bytes() >= kChunkBytes) end(End::Why::fell_behind);
}

void Writer::finish() noexcept {
  if (std::exchange(finished_, true)) return;
  if (!ran_within_memory([&] { file_->stop(encoder_.take(), last_ns_); })) end(End::Why::no_memory);
}

}  // namespace vmem::trace
