#include "compress/lz4.hpp"

#include <fmt/format.h>
#include <lz4.h>

#include <algorithm>
#include <cassert>
#include <limits>

namespace vmem::compress {
namespace {

struct State : Workspace::Part {
  State()
      : bytes(std::make_unique<Aligned[]>((std::size_t(LZ4_sizeofState()) + sizeof(Aligned) - 1) / sizeof(Aligned))) {}
  struct alignas(16) Aligned {
    std::byte bytes[16];
  };
  std::unique_ptr<Aligned[]> bytes;
};

constexpr std::size_t kMostInput = LZ4_MAX_INPUT_SIZE;

const char* chars(std::span<const std::byte> bytes) { return reinterpret_cast<const char*>(bytes.data()); }
char* chars(std::span<std::byte> bytes) { return reinterpret_cast<char*>(bytes.data()); }
int length(std::size_t bytes) { return int(std::min<std::size_t>(bytes, std::numeric_limits<int>::max())); }

}  // namespace

Lz4::Lz4(int acceleration)
    : acceleration_(acceleration), name_(acceleration == 1 ? "lz4" : fmt::format("lz4-{}", acceleration)) {
  assert(acceleration >= 1 && acceleration <= kMostAcceleration);
}

CodecId Lz4::id() const noexcept { return CodecId(acceleration_); }

Result<std::optional<std::size_t>> Lz4::compress(std::span<const std::byte> in, std::span<std::byte> out,
                                                 Workspace& workspace) const {
  if (in.size() > kMostInput) {
    return fail(VMEM_ERROR_INVALID_VALUE,
                fmt::format("{}: {} bytes at once; at most {}", name_, in.size(), kMostInput));
  }
  if (out.empty()) return std::nullopt;  // even empty input takes one byte
  const int written = LZ4_compress_fast_extState(workspace.part<State>().bytes.get(), chars(in), chars(out),
                                                 length(in.size()), length(out.size()), acceleration_);
  if (written <= 0) return std::nullopt;
  return std::size_t(written);
}

Status Lz4::decompress(std::span<const std::byte> in, std::span<std::byte> out, Workspace&) const {
  if (in.empty() || in.size() > std::size_t(std::numeric_limits<int>::max()) || out.size() > kMostInput) {
    return fail(VMEM_ERROR_LOST, fmt::format("{}: {} bytes cannot be a page of {}", name_, in.size(), out.size()));
  }
  const int written = LZ4_decompress_safe(chars(in), chars(out), length(in.size()), length(out.size()));
  if (written >= 0 && std::size_t(written) == out.size()) return {};
  if (written >= 0) {
    return fail(VMEM_ERROR_LOST, fmt::format("{}: {} stored bytes hold {} bytes of a page of {}", name_, in.size(),
                                             written, out.size()));
  }
  return fail(VMEM_ERROR_LOST,
              fmt::format("{}: the {} stored bytes of a page of {} are not whole: no sequence at byte {}", name_,
                          in.size(), out.size(), -(std::int64_t(written) + 1)));
}

}  // namespace vmem::compress
