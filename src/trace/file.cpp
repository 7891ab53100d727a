#include "trace/file.hpp"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/printable.hpp"
#include "base/sizes.hpp"
#include "trace/encoding.hpp"

namespace vmem::trace {
namespace {

constexpr int kLevel = 1;  // zstd's fastest: traces repeat themselves anyway
constexpr std::size_t kPathMax = 1000;
// Events in memory take about eight times their bytes here.
constexpr std::uint64_t kRawMax = std::uint64_t{1} << 30;
// Of a block: 32 TiB.
constexpr std::uint32_t kGranulesMax = 1u << 24;
static_assert(sizeof(ChunkFrame) == 16);

Error damaged(const std::string& path, const std::string& what) {
  return {VMEM_ERROR_INVALID_VALUE, 0,
          fmt::format("the trace {} is damaged: {}; record it again", printable(path, kPathMax), what)};
}

class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {}

  Result<Trace> read() {
    VMEM_TRY(open());
    Trace trace;
    std::vector<std::byte> raw;
    VMEM_ASSIGN(const bool header, next(raw));
    if (!header) return std::unexpected(damaged(path_, "it ends in its first chunk"));
    if (!decode(raw, trace.header)) return std::unexpected(damaged(path_, "its first chunk is no header"));
    VMEM_TRY(read_events(trace));
    std::ranges::stable_sort(trace.events, {}, &Event::at_ns);
    VMEM_TRY(check(trace));
    return trace;
  }

 private:
  Status read_events(Trace& trace) {
    std::vector<std::byte> raw;
    for (std::uint64_t bytes = 0;; bytes += raw.size()) {
      VMEM_ASSIGN(const bool more, next(raw));
      if (!more) break;
      if (bytes > kRawMax)
        return fail(
            VMEM_ERROR_INVALID_VALUE,
            fmt::format("the trace {} has more than {} of events, too many to look at at once; record a shorter "
                        "run, or with a smaller --trace-limit",
                        printable(path_, kPathMax), format_bytes(kRawMax)));
      if (!decode(raw, trace.events))
        return std::unexpected(damaged(path_, fmt::format("there are no events in the chunk before byte {}", at_)));
      const End* const end = trace.events.empty() ? nullptr : std::get_if<End>(&trace.events.back().body);
      if (end == nullptr) continue;
      trace.ended = end->why;
      return {};
    }
    trace.cut_short =
        fmt::format("it ends after {} without an end: the program was killed, or the disk was full", format_bytes(at_));
    return {};
  }

  // What commands rely on. Also collects the names.
  Status check(Trace& trace) const {
    for (const Event& event : trace.events) {
      if (const auto* begins = std::get_if<BlockBegins>(&event.body)) {
        const bool possible = begins->granules <= kGranulesMax && begins->granule <= kNoGranule - begins->granules &&
                              begins->bytes <= std::uint64_t{begins->granules} << kGranuleShift;
        if (!possible) return std::unexpected(damaged(path_, "a block has an impossible size"));
      }
      const Name* const name = std::get_if<Name>(&event.body);
      if (name == nullptr) continue;
      if (name->id > trace.events.size()) return std::unexpected(damaged(path_, "a name's number is too large"));
      if (name->id >= trace.names.size()) trace.names.resize(name->id + 1);
      trace.names[name->id] = name->text;
    }
    return {};
  }

  Status open() {
    file_.open(path_, std::ios::binary);
    if (!file_)
      return fail(VMEM_ERROR_INVALID_VALUE,
                  fmt::format("cannot open the trace {}: {}", printable(path_, kPathMax), std::strerror(errno)), errno);
    std::string mark(kMark.size(), '\0');
    std::uint32_t version = 0;
    if (!get(mark.data(), mark.size()) || mark != kMark || !get(&version, sizeof version))
      return fail(
          VMEM_ERROR_INVALID_VALUE,
          fmt::format("{} is no trace of vmem: it does not begin with '{}'; record one with `vmem trace record`",
                      printable(path_, kPathMax), kMark));
    if (version != kVersion)
      return fail(
          VMEM_ERROR_INVALID_VALUE,
          fmt::format("the trace {} has version {}, and this vmem reads version {}; use the vmem that recorded it",
                      printable(path_, kPathMax), version, kVersion));
    return {};
  }

  bool get(void* to, std::size_t bytes) {
    file_.read(static_cast<char*>(to), std::streamsize(bytes));
    const bool whole = std::size_t(file_.gcount()) == bytes;
    if (whole) at_ += bytes;
    return whole;
  }

  // False: the file ends before the next chunk does.
  Result<bool> next(std::vector<std::byte>& raw) {
    ChunkFrame frame;
    if (!get(&frame, sizeof frame)) return false;
    // Also keeps a damaged size from asking for gigabytes.
    if (frame.raw_bytes > 2 * kChunkBytes || frame.stored_bytes > ZSTD_compressBound(2 * kChunkBytes))
      return std::unexpected(
          damaged(path_, fmt::format("the chunk at byte {} has an impossible size", at_ - sizeof frame)));
    std::vector<std::byte> stored(frame.stored_bytes);
    if (!get(stored.data(), stored.size())) return false;
    if (XXH3_64bits(stored.data(), stored.size()) != frame.sum)
      return std::unexpected(damaged(path_, fmt::format("checksum mismatch before byte {}", at_)));
    raw.resize(frame.raw_bytes);
    const std::size_t bytes = ZSTD_decompress(raw.data(), raw.size(), stored.data(), stored.size());
    if (ZSTD_isError(bytes) != 0 || bytes != raw.size())
      return std::unexpected(damaged(path_, fmt::format("the chunk before byte {} cannot be decompressed", at_)));
    return true;
  }

  const std::string path_;
  std::ifstream file_;
  std::uint64_t at_ = 0;
};

}  // namespace

std::vector<std::byte> pack(const std::vector<std::byte>& raw) {
  ChunkFrame frame;
  std::vector<std::byte> packed(sizeof frame + ZSTD_compressBound(raw.size()));
  std::byte* const stored = packed.data() + sizeof frame;
  // Cannot fail: the room is what zstd says it needs at most.
  const std::size_t bytes = ZSTD_compress(stored, packed.size() - sizeof frame, raw.data(), raw.size(), kLevel);
  frame = {std::uint32_t(bytes), std::uint32_t(raw.size()), XXH3_64bits(stored, bytes)};
  std::memcpy(packed.data(), &frame, sizeof frame);
  packed.resize(sizeof frame + bytes);
  return packed;
}

Result<Trace> read(const std::string& path) { return Reader(path).read(); }

}  // namespace vmem::trace
