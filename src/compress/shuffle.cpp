#include "compress/shuffle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>

#include "compress/planes.hpp"

namespace vmem::compress {
namespace {

constexpr std::size_t kHeaderBytes = 4;
constexpr std::uint32_t kAsIs = std::uint32_t{1} << 31;
static_assert(Shuffle::kBlockBytes < kAsIs && Shuffle::kBlockBytes % kMostPlanes == 0);

// One block's planes in sequence.
struct Block : Workspace::Part {
  std::unique_ptr<std::byte[]> bytes = std::make_unique_for_overwrite<std::byte[]>(Shuffle::kBlockBytes);
  std::span<std::byte> plane(std::size_t index, std::size_t elements) {
    return {bytes.get() + index * elements, elements};
  }
};

void put_header(std::uint32_t header, std::span<std::byte> out) {
  for (std::size_t i = 0; i < kHeaderBytes; ++i) out[i] = std::byte(header >> (8 * i) & 0xff);
}

std::uint32_t get_header(std::span<const std::byte> in) {
  std::uint32_t header = 0;
  for (std::size_t i = 0; i < kHeaderBytes; ++i) header |= std::to_integer<std::uint32_t>(in[i]) << (8 * i);
  return header;
}

}  // namespace

Shuffle::Shuffle(std::size_t width, const Codec& inner)
    : width_(width), inner_(inner), name_(fmt::format("shuffle{}+{}", width, inner.name())) {
  assert((width == 2 || width == 4 || width == 8) && std::uint8_t(inner.id()) < 0x40);
}

// The two highest bits: 0 without shuffle; 1, 2, 3 for widths 2, 4, 8.
CodecId Shuffle::id() const noexcept {
  return CodecId(std::uint8_t(inner_.id()) | unsigned(std::countr_zero(width_)) << 6);
}

Result<std::optional<std::size_t>> Shuffle::compress(std::span<const std::byte> in, std::span<std::byte> out,
                                                     Workspace& workspace) const {
  Block& block = workspace.part<Block>();
  std::size_t written = 0;
  while (in.size() >= width_) {
    const std::size_t elements = std::min(in.size(), kBlockBytes) / width_;
    Planes planes{};
    for (std::size_t i = 0; i < width_; ++i) planes[i] = block.plane(i, elements).data();
    split_planes(in.data(), elements, width_, planes);
    for (std::size_t i = 0; i < width_; ++i) {
      VMEM_ASSIGN(const auto stored, compress_plane(block.plane(i, elements), out.subspan(written), workspace));
      if (!stored) return std::nullopt;
      written += *stored;
    }
    in = in.subspan(elements * width_);
  }
  if (in.size() > out.size() - written) return std::nullopt;
  std::ranges::copy(in, out.subspan(written).begin());
  return written + in.size();
}

Result<std::optional<std::size_t>> Shuffle::compress_plane(std::span<const std::byte> plane, std::span<std::byte> out,
                                                           Workspace& workspace) const {
  if (out.size() <= kHeaderBytes) return std::nullopt;
  const auto room = out.subspan(kHeaderBytes);
  VMEM_ASSIGN(const auto smaller,
              inner_.compress(plane, room.first(std::min(room.size(), plane.size() - 1)), workspace));
  if (smaller) {
    put_header(std::uint32_t(*smaller), out);
    return kHeaderBytes + *smaller;
  }
  if (room.size() < plane.size()) return std::nullopt;
  put_header(std::uint32_t(plane.size()) | kAsIs, out);
  std::ranges::copy(plane, room.begin());
  return kHeaderBytes + plane.size();
}

Status Shuffle::decompress(std::span<const std::byte> in, std::span<std::byte> out, Workspace& workspace) const {
  Block& block = workspace.part<Block>();
  while (out.size() >= width_) {
    const std::size_t elements = std::min(out.size(), kBlockBytes) / width_;
    ConstPlanes planes{};
    for (std::size_t i = 0; i < width_; ++i) {
      VMEM_ASSIGN(planes[i], take_plane(in, block.plane(i, elements), workspace));
    }
    join_planes(planes, elements, width_, out.data());
    out = out.subspan(elements * width_);
  }
  if (in.size() != out.size()) {
    return fail(VMEM_ERROR_LOST, fmt::format("{}: {} bytes are stored behind the last block where the page has {}",
                                             name_, in.size(), out.size()));
  }
  std::ranges::copy(in, out.begin());
  return {};
}

Result<const std::byte*> Shuffle::take_plane(std::span<const std::byte>& in, std::span<std::byte> room,
                                             Workspace& workspace) const {
  const std::uint32_t header = in.size() < kHeaderBytes ? 0 : get_header(in);
  const std::size_t stored = header & ~kAsIs;
  const bool as_is = (header & kAsIs) != 0;
  // A compressed plane is smaller than the original and not empty.
  const bool possible = as_is ? stored == room.size() : stored > 0 && stored < room.size();
  if (!possible || stored > in.size() - kHeaderBytes) {
    return fail(VMEM_ERROR_LOST, fmt::format("{}: no plane of {} bytes in the {} that are left of what is stored",
                                             name_, room.size(), in.size()));
  }
  const auto plane = in.subspan(kHeaderBytes, stored);
  in = in.subspan(kHeaderBytes + stored);
  if (as_is) return plane.data();
  VMEM_TRY(inner_.decompress(plane, room, workspace));
  return room.data();
}

}  // namespace vmem::compress
