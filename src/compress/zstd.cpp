#include "compress/zstd.hpp"

#include <fmt/format.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <cassert>

namespace vmem::compress {
namespace {

struct Freed {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};
struct Compressing : Workspace::Part {
  std::unique_ptr<ZSTD_CCtx, Freed> context{ZSTD_createCCtx()};
};
struct Decompressing : Workspace::Part {
  std::unique_ptr<ZSTD_DCtx, Freed> context{ZSTD_createDCtx()};
};

constexpr std::size_t kMagicBytes = 4;
constexpr int kSmallestHashLog = 6;

std::unexpected<Error> no_memory(std::string_view name) {
  return fail(VMEM_ERROR_OUT_OF_MEMORY, fmt::format("{}: no host memory for its context", name));
}

// The library also accepts consecutive frames, skippable frames, and legacy frames of versions
// before 1.0. A page must be exactly one frame of the current format.
bool is_one_frame(std::span<const std::byte> in) {
  if (in.size() < kMagicBytes) return false;
  for (std::size_t i = 0; i < kMagicBytes; ++i) {
    if (in[i] != std::byte(ZSTD_MAGICNUMBER >> (8 * i) & 0xff)) return false;
  }
  return ZSTD_findFrameCompressedSize(in.data(), in.size()) == in.size();
}

// No errors: each parameter is within the library's range.
void set_up(ZSTD_CCtx* context, int level) {
  ZSTD_CCtx_reset(context, ZSTD_reset_session_and_parameters);
  if (level != Zstd::kHuffman) {
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
    return;
  }
  ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, 1);
  ZSTD_CCtx_setParameter(context, ZSTD_c_minMatch, 7);  // maximum of this level's search
  ZSTD_CCtx_setParameter(context, ZSTD_c_hashLog, kSmallestHashLog);
}

}  // namespace

Zstd::Zstd(int level) : level_(level), name_(level == kHuffman ? "zstd-huffman" : fmt::format("zstd-{}", level)) {
  assert(level >= kHuffman && level <= kHighestLevel);
}

CodecId Zstd::id() const noexcept { return CodecId(31 + level_); }

Result<std::optional<std::size_t>> Zstd::compress(std::span<const std::byte> in, std::span<std::byte> out,
                                                  Workspace& workspace) const {
  auto& context = workspace.part<Compressing>().context;
  if (context == nullptr) return no_memory(name_);
  set_up(context.get(), level_);
  const std::size_t written = ZSTD_compress2(context.get(), out.data(), out.size(), in.data(), in.size());
  if (ZSTD_isError(written) == 0) return written;
  switch (ZSTD_getErrorCode(written)) {
    case ZSTD_error_dstSize_tooSmall:
      return std::nullopt;
    case ZSTD_error_memory_allocation:
      return no_memory(name_);
    default:
      return fail(VMEM_ERROR_INTERNAL, fmt::format("{}: {} bytes could not be compressed: {}", name_, in.size(),
                                                   ZSTD_getErrorName(written)));
  }
}

Status Zstd::decompress(std::span<const std::byte> in, std::span<std::byte> out, Workspace& workspace) const {
  auto& context = workspace.part<Decompressing>().context;
  if (context == nullptr) return no_memory(name_);
  if (!is_one_frame(in)) {
    return fail(VMEM_ERROR_LOST, fmt::format("{}: the {} stored bytes of a page of {} are not one whole frame", name_,
                                             in.size(), out.size()));
  }
  const unsigned long long holds = ZSTD_getFrameContentSize(in.data(), in.size());
  if (holds != out.size()) {
    return fail(VMEM_ERROR_LOST, fmt::format("{}: {} stored bytes are not a page of {}: their frame says {}", name_,
                                             in.size(), out.size(), std::int64_t(holds)));
  }
  const std::size_t read = ZSTD_decompressDCtx(context.get(), out.data(), out.size(), in.data(), in.size());
  if (ZSTD_isError(read) != 0) {
    return fail(VMEM_ERROR_LOST, fmt::format("{}: the {} stored bytes of a page of {} do not decode: {}", name_,
                                             in.size(), out.size(), ZSTD_getErrorName(read)));
  }
  if (read != out.size()) {
    return fail(VMEM_ERROR_LOST,
                fmt::format("{}: {} stored bytes hold {} bytes of a page of {}", name_, in.size(), read, out.size()));
  }
  return {};
}

}  // namespace vmem::compress
