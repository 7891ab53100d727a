#include "tiers/disk/slot_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/falloc.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/aside.hpp"
#include "base/log.hpp"
#include "base/sizes.hpp"
#include "tiers/disk/slot_header.hpp"
#include "tiers/io/request_size.hpp"

namespace vmem::tiers {
namespace {

// A chunk serves one page size until it is empty, so it is a small share of the file.
constexpr std::uint64_t kChunkBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kChunksInBudget = 32;

std::unexpected<Error> refuse(const std::string& path, const std::string& why, int error = 0) {
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--nvme {}: {}", path, why), error);
}

Result<FileDescriptor> open_unnamed(const std::string& path) {
  FileDescriptor file(::open(path.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600));
  if (file) return file;
  int error = errno;
  if (error == EOPNOTSUPP || error == EISDIR) {
    // The file system does not support unnamed files.
    std::string name = path + "/vmem-XXXXXX";
    file = FileDescriptor(::mkostemp(name.data(), O_DIRECT | O_CLOEXEC));
    error = errno;
    if (file) {
      (void)::unlink(name.c_str());
      return file;
    }
  }
  if (error == EINVAL)
    return refuse(path, "its file system has no direct I/O (O_DIRECT), as tmpfs; name one on a disk", error);
  return refuse(path, fmt::format("cannot make a file there: {}", std::strerror(error)), error);
}

void warn_of_memory(const std::string& path) {
  struct statfs about{};
  if (::statfs(path.c_str(), &about) != 0) return;
  if (about.f_type == TMPFS_MAGIC || about.f_type == RAMFS_MAGIC)
    VMEM_LOG_WARN("--nvme {}: that is memory (tmpfs), not a disk: pages there take host memory a second time", path);
}

// Some file systems accept O_DIRECT in open and refuse the first write.
Status try_direct_write(const std::string& path, int file) {
  auto* const block = static_cast<unsigned char*>(std::aligned_alloc(kHeaderBytes, kHeaderBytes));
  if (block == nullptr)
    return fail(VMEM_ERROR_OUT_OF_MEMORY, fmt::format("--nvme {}: no memory to try out direct I/O there", path),
                ENOMEM);
  // A pattern, so that FrameReader::open can verify the bytes it reads.
  for (std::size_t i = 0; i < kHeaderBytes; ++i) block[i] = static_cast<unsigned char>(i + i / 251);
  const ssize_t written = ::pwrite(file, block, kHeaderBytes, 0);
  const int error = errno;
  std::free(block);
  if (written == ssize_t(kHeaderBytes)) return {};
  const std::string why = written < 0 ? std::strerror(error) : "the disk is full";
  return refuse(path, fmt::format("cannot write to a file there with direct I/O: {}", why), error);
}

}  // namespace

Result<std::unique_ptr<SlotFiles>> SlotFiles::create(const std::vector<StoreDirectory>& directories,
                                                     std::chrono::microseconds answer_wait) {
  std::unique_ptr<SlotFiles> files(new SlotFiles(answer_wait));
  const auto deadline = std::chrono::steady_clock::now() + answer_wait;
  for (const StoreDirectory& directory : directories) {
    const auto left = std::max(deadline - std::chrono::steady_clock::now(), std::chrono::steady_clock::duration{});
    auto opened = call_within<Result<File>>(std::chrono::duration_cast<std::chrono::microseconds>(left),
                                            [directory] { return open(directory); });
    if (!opened)
      return fail(VMEM_ERROR_TIMEOUT,
                  fmt::format("--nvme {}: its file system did not answer within {} (option call_wait)", directory.path,
                              exact_duration_us(std::uint64_t(answer_wait.count()))));
    if (!*opened) return std::unexpected(std::move(*opened).error());
    files->files_.push_back(**std::move(opened));
  }
  return files;
}

// Closing a file can block as long as opening it.
SlotFiles::~SlotFiles() {
  Aside closing;
  for (File& file : files_) closing.begin([descriptor = std::move(file.descriptor)]() mutable { descriptor.reset(); });
  (void)closing.finish(answer_wait_);
}

Result<SlotFiles::File> SlotFiles::open(const StoreDirectory& directory) {
  struct stat about{};
  if (::stat(directory.path.c_str(), &about) != 0) return refuse(directory.path, std::strerror(errno), errno);
  if (!S_ISDIR(about.st_mode)) return refuse(directory.path, "not a directory");
  warn_of_memory(directory.path);
  File file;
  VMEM_ASSIGN(file.descriptor, open_unnamed(directory.path));
  const int descriptor = file.descriptor.get();
  VMEM_TRY(try_direct_write(directory.path, descriptor));
  file.request_bytes = uncut_request_bytes(descriptor, kRequestBytesMax);
  struct statvfs room{};
  if (::fstatvfs(descriptor, &room) != 0) return refuse(directory.path, std::strerror(errno), errno);
  const std::uint64_t available = std::uint64_t{room.f_bavail} * room.f_frsize;
  file.budget_bytes = directory.bytes.value_or(available / 2);
  if (file.budget_bytes > available) {
    return refuse(directory.path, fmt::format("{} asked for, {} are free there", format_bytes(file.budget_bytes),
                                              format_bytes(available)));
  }
  file.path = directory.path;
  return file;
}

std::vector<int> SlotFiles::descriptors() const {
  std::vector<int> result;
  for (const File& file : files_) result.push_back(file.descriptor.get());
  return result;
}

std::vector<std::uint64_t> SlotFiles::budgets() const {
  std::vector<std::uint64_t> result;
  for (const File& file : files_) {
    if (!file.retired) result.push_back(file.budget_bytes);
  }
  return result;
}

std::uint64_t SlotFiles::budget_bytes() const {
  std::uint64_t bytes = 0;
  for (const File& file : files_) bytes += file.retired ? 0 : file.budget_bytes;
  return bytes;
}

bool SlotFiles::note_read(std::uint32_t file, bool failed) {
  std::uint32_t& in_a_row = files_[file].failed_reads;
  in_a_row = failed ? in_a_row + 1 : 0;
  return in_a_row == kFailedReads;
}

bool SlotFiles::retire(std::uint32_t index, const Error& error) {
  File& file = files_[index];
  if (file.retired) return false;
  file.retired = error;
  for (const Chunk& chunk : chunks_) {
    if (chunk.state == Chunk::State::ready && chunk.file == index)
      ready_bytes_ -= (chunk.slots - chunk.used) * chunk.page_bytes;
  }
  return true;
}

std::optional<Error> SlotFiles::out_of_service() const {
  if (!std::ranges::all_of(files_, [](const File& file) { return file.retired.has_value(); })) return std::nullopt;
  return files_.front().retired;
}

bool SlotFiles::ends_service(int error) {
  static constexpr std::array kErrors{
      EIO,          EROFS,      EUCLEAN,               // a local file system
      EBADMSG,                                         // checksum mismatch in its metadata
      ENODEV,       ENXIO,      ESHUTDOWN,             // its device is gone
      EREMOTEIO,    ENOLINK,    EBADE,        EILSEQ,  // SAN: target, link, reservation, integrity
      ETIME,        ETIMEDOUT,                         // a block device; soft NFS
      ESTALE,       EHOSTDOWN,  EHOSTUNREACH,          // a network file system
      ENETUNREACH,  ECONNRESET, ECONNREFUSED, EPIPE,   // its connection
      ECONNABORTED, ENOTCONN};                         // a FUSE server that has ended
  return std::ranges::find(kErrors, error) != kErrors.end();
}

SlotFiles::Place SlotFiles::place(SlotId slot) const {
  const Chunk& chunk = chunks_[slot / kSlotsMax];
  const std::uint64_t begin = chunk.offset + slot % kSlotsMax * (chunk.page_bytes + kHeaderBytes);
  return {chunk.file, begin, begin + kHeaderBytes};
}

// Takes from the next file in turn, and there from the fullest chunk with room, so that other
// chunks become empty.
std::optional<SlotId> SlotFiles::take(std::uint64_t page_bytes) {
  const auto files = std::uint32_t(files_.size());
  const auto rank = [&](const Chunk& chunk) {
    return std::pair((chunk.file + files - next_file_) % files, chunk.slots - chunk.used);
  };
  std::optional<std::uint32_t> best;
  for (std::uint32_t i = 0; i < chunks_.size(); ++i) {
    const Chunk& chunk = chunks_[i];
    if (chunk.state != Chunk::State::ready || retired(chunk.file)) continue;
    if (chunk.page_bytes != page_bytes || chunk.used == chunk.slots) continue;
    if (!best || rank(chunk) < rank(chunks_[*best])) best = i;
  }
  if (!best) return std::nullopt;
  Chunk& chunk = chunks_[*best];
  next_file_ = (chunk.file + 1) % files;
  std::uint32_t index = 0;
  while (chunk.taken[index]) ++index;
  chunk.taken.set(index);
  ++chunk.used;
  used_bytes_ += page_bytes;
  ready_bytes_ -= page_bytes;
  return *best * kSlotsMax + index;
}

void SlotFiles::give_back(SlotId slot) {
  Chunk& chunk = chunks_[slot / kSlotsMax];
  chunk.taken.reset(slot % kSlotsMax);
  --chunk.used;
  used_bytes_ -= chunk.page_bytes;
  if (!retired(chunk.file)) ready_bytes_ += chunk.page_bytes;
}

std::uint32_t SlotFiles::slots_that_fit(const File& file, std::uint64_t page_bytes) const {
  if (file.full || file.retired) return 0;
  const std::uint64_t chunk_bytes = std::min(kChunkBytes, file.budget_bytes / kChunksInBudget);
  const std::uint64_t wanted = std::clamp<std::uint64_t>(chunk_bytes / page_bytes, 1, kSlotsMax);
  const std::uint64_t left = file.budget_bytes - std::min(file.budget_bytes, file.allocated_bytes);
  return std::uint32_t(std::min(wanted, left / page_bytes));
}

// By file: whether it has a free slot, or will have one after a planned change.
std::vector<bool> SlotFiles::files_that_give(std::uint64_t page_bytes) const {
  std::vector<bool> gives(files_.size());
  for (const Chunk& chunk : chunks_) {
    const bool changing = chunk.state == Chunk::State::growing || chunk.state == Chunk::State::shrinking;
    const bool free = changing || (chunk.state == Chunk::State::ready && chunk.used < chunk.slots);
    if (chunk.page_bytes == page_bytes && free && !retired(chunk.file)) gives[chunk.file] = true;
  }
  return gives;
}

bool SlotFiles::uneven(std::uint64_t page_bytes) const {
  if (files_.size() == 1) return false;
  const std::vector<bool> gives = files_that_give(page_bytes);
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (!gives[i] && slots_that_fit(files_[i], page_bytes) != 0) return true;
  }
  return false;
}

bool SlotFiles::growing() const {
  return std::ranges::any_of(chunks_, [](const Chunk& chunk) { return chunk.state == Chunk::State::growing; });
}

bool SlotFiles::shrinking() const {
  return std::ranges::any_of(chunks_, [](const Chunk& chunk) { return chunk.state == Chunk::State::shrinking; });
}

std::vector<bool> SlotFiles::growing_files() const {
  std::vector<bool> growing(files_.size());
  for (const Chunk& chunk : chunks_) {
    if (chunk.state == Chunk::State::growing) growing[chunk.file] = true;
  }
  return growing;
}

std::optional<SlotFiles::Change> SlotFiles::plan_growth(std::uint64_t page_bytes) {
  const std::vector<bool> gives = files_that_give(page_bytes), growing = growing_files();
  const auto room = [&](const File& file) {
    return growing[std::size_t(&file - files_.data())] ? 0 : slots_that_fit(file, page_bytes);
  };
  const auto roomiest = std::ranges::max_element(files_, {}, [&](const File& file) {
    const bool none = !gives[std::size_t(&file - files_.data())];
    return std::tuple(room(file) != 0, none, file.budget_bytes - file.allocated_bytes);
  });
  File& file = *roomiest;
  const std::uint32_t slots = room(file);
  if (slots == 0) return std::nullopt;
  std::uint32_t index = std::uint32_t(chunks_.size());
  if (spare_chunks_.empty()) {
    chunks_.emplace_back();
  } else {
    index = spare_chunks_.back();
    spare_chunks_.pop_back();
  }
  Chunk& chunk = chunks_[index];
  chunk = {};
  chunk.file = std::uint32_t(roomiest - files_.begin());
  chunk.page_bytes = page_bytes;
  chunk.slots = slots;
  chunk.state = Chunk::State::growing;
  const std::uint64_t bytes = slots * (page_bytes + kHeaderBytes);
  if (const auto hole = file.holes.find(bytes); hole != file.holes.end()) {
    chunk.offset = hole->second;
    file.holes.erase(hole);
  } else {
    chunk.offset = file.end;
    file.end += bytes;
  }
  file.allocated_bytes += slots * page_bytes;
  return Change{Change::Kind::allocate, index, chunk.file, chunk.offset, bytes};
}

std::uint64_t SlotFiles::free_bytes(std::uint64_t page_bytes) const {
  std::uint64_t bytes = 0;
  for (const Chunk& chunk : chunks_) {
    if (chunk.state == Chunk::State::ready && chunk.page_bytes == page_bytes && !retired(chunk.file))
      bytes += (chunk.slots - chunk.used) * page_bytes;
  }
  return bytes;
}

// Keeps one empty chunk per page size while pages of that size are stored, as a reserve.
std::optional<SlotFiles::Change> SlotFiles::plan_shrinking(std::optional<std::uint64_t> wanted_page_bytes) {
  for (std::uint32_t i = 0; i < chunks_.size(); ++i) {
    Chunk& chunk = chunks_[i];
    if (chunk.state != Chunk::State::ready || chunk.used != 0 || retired(chunk.file)) continue;
    const bool in_use = std::ranges::any_of(chunks_, [&](const Chunk& each) {
      return each.state == Chunk::State::ready && each.page_bytes == chunk.page_bytes && each.used != 0;
    });
    const bool spare = in_use && free_bytes(chunk.page_bytes) < 2 * chunk.slots * chunk.page_bytes;
    if (spare && wanted_page_bytes.value_or(chunk.page_bytes) == chunk.page_bytes) continue;
    chunk.state = Chunk::State::shrinking;
    ready_bytes_ -= chunk.slots * chunk.page_bytes;
    return Change{Change::Kind::punch, i, chunk.file, chunk.offset, chunk.slots * (chunk.page_bytes + kHeaderBytes)};
  }
  return std::nullopt;
}

Status SlotFiles::change_space(Change::Kind kind, std::uint32_t index, std::uint64_t offset,
                               std::uint64_t bytes) const {
  const File& file = files_[index];
  const int mode = kind == Change::Kind::allocate ? 0 : FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  int result = 0;
  do {
    result = ::fallocate(file.descriptor.get(), mode, off_t(offset), off_t(bytes));
  } while (result != 0 && errno == EINTR);
  // Without fallocate, the first write allocates the space and may fail; closing the file frees it.
  if (result == 0 || errno == EOPNOTSUPP) return {};
  const bool full = errno == ENOSPC || errno == EDQUOT;
  return fail(full ? VMEM_ERROR_OUT_OF_MEMORY : VMEM_ERROR_DRIVER,
              fmt::format("fallocate of {} in {}: {}", format_bytes(bytes), file.path, std::strerror(errno)), errno);
}

Status SlotFiles::carry_out(const Change& change) const {
  return change_space(change.kind, change.file, change.offset, change.bytes);
}

Status SlotFiles::punch(const Place& place, std::uint64_t from, std::uint64_t bytes) const {
  return change_space(Change::Kind::punch, place.file, place.header + from, bytes);
}

Status SlotFiles::fill_hole(const Place& place, std::uint64_t from, std::uint64_t bytes) const {
  return change_space(Change::Kind::allocate, place.file, place.header + from, bytes);
}

double SlotFiles::fill() const {
  if (std::ranges::any_of(files_, [](const File& file) { return file.full && !file.retired; })) return 1;
  return std::min(1.0, double(used_bytes_) / double(std::max<std::uint64_t>(budget_bytes(), 1)));
}

void SlotFiles::settle(const Change& change, bool done) {
  Chunk& chunk = chunks_[change.chunk];
  File& file = files_[change.file];
  const bool stays = change.kind == Change::Kind::allocate ? done : !done;
  if (stays) {
    chunk.state = Chunk::State::ready;
    if (!file.retired) ready_bytes_ += chunk.slots * chunk.page_bytes;
    return;
  }
  file.full = change.kind == Change::Kind::allocate;
  file.allocated_bytes -= chunk.slots * chunk.page_bytes;
  chunk = {};
  spare_chunks_.push_back(change.chunk);
  file.holes.emplace(change.bytes, change.offset);
}

void SlotFiles::try_full_ones() {
  for (File& file : files_) file.full = false;
}

}  // namespace vmem::tiers
