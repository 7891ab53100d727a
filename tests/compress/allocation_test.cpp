// Once a workspace has served one page of a size, a worker allocates nothing for further pages. All
// allocations, also in libraries, reach the functions below, which count them and call glibc.
#include <gtest/gtest.h>

#include <cstdlib>

#include "compress/pages.hpp"
#include "compress/registry.hpp"

namespace {
thread_local std::size_t allocations = 0;
}  // namespace

extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* block, std::size_t bytes);
void* malloc(std::size_t bytes) {
  ++allocations;
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  ++allocations;
  return __libc_calloc(count, bytes);
}
void* realloc(void* block, std::size_t bytes) {
  ++allocations;
  return __libc_realloc(block, bytes);
}
}

namespace vmem::compress {
namespace {

TEST(Workspace, PagesCostNoAllocationOnceItHasServedOne) {
  constexpr std::size_t kPage = std::size_t{2} << 20;
  const Bytes pages[] = {make_page(Kind::half, kPage), make_page(Kind::fp32, kPage), make_page(Kind::noise, kPage)};
  Bytes stored(kPage + kPage / 64), back(kPage);
  for (const std::string_view name : {"none", "lz4", "lz4-16", "zstd-huffman", "zstd-1", "zstd-3", "zstd-9",
                                      "shuffle2+lz4", "shuffle4+zstd-huffman", "shuffle8+zstd-1"}) {
    SCOPED_TRACE(name);
    const Codec& codec = *parse_setting(name)->codec;
    Workspace workspace;
    const auto round_trip = [&](const Bytes& page) {
      const std::size_t written = **codec.compress(page, stored, workspace);
      return codec.decompress(std::span(stored).first(written), back, workspace).has_value();
    };
    allocations = 0;
    EXPECT_TRUE(round_trip(pages[0]));
    EXPECT_EQ(allocations == 0, name == "none") << "the count works";
    allocations = 0;
    for (int round = 0; round < 3; ++round) {
      for (const Bytes& page : pages) EXPECT_TRUE(round_trip(page));
    }
    EXPECT_EQ(allocations, 0u);
  }
}

}  // namespace
}  // namespace vmem::compress
