#include "compress/none.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace vmem::compress {

Result<std::optional<std::size_t>> None::compress(std::span<const std::byte> in, std::span<std::byte> out,
                                                  Workspace&) const {
  if (in.size() > out.size()) return std::nullopt;
  std::ranges::copy(in, out.begin());
  return in.size();
}

Status None::decompress(std::span<const std::byte> in, std::span<std::byte> out, Workspace&) const {
  if (in.size() != out.size()) {
    return fail(VMEM_ERROR_LOST, fmt::format("none: {} bytes are stored where the page has {}", in.size(), out.size()));
  }
  std::ranges::copy(in, out.begin());
  return {};
}

}  // namespace vmem::compress
