// Throughput of codecs on one core: uncompressed page bytes per second, on memory outside the
// cache. Counter `ratio`: page size over stored size. Data: `half` repeats every other 64 bytes
// (2:1), `bf16` and `fp32` are normally distributed weights, `noise` does not compress, `zero`
// does.
#include <benchmark/benchmark.h>

#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "compress/planes.hpp"
#include "compress/registry.hpp"

namespace {

using vmem::compress::Codec;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kPageBytes = std::size_t{32} << 20;

Bytes noise() {
  std::mt19937_64 random(1);
  Bytes page(kPageBytes);
  for (std::size_t i = 0; i < page.size(); i += 8) {
    const std::uint64_t word = random();
    std::memcpy(page.data() + i, &word, sizeof word);
  }
  return page;
}

Bytes half() {
  Bytes page = noise();
  for (std::size_t i = 4096 + 64; i < page.size(); i += 128) std::memcpy(page.data() + i, page.data() + i % 4096, 64);
  return page;
}

template <class Word>
Bytes weights() {
  std::mt19937 random(1);
  std::normal_distribution<float> value(0, 0.02F);
  Bytes page(kPageBytes);
  for (std::size_t i = 0; i < page.size(); i += sizeof(Word)) {
    const Word word = Word(std::bit_cast<std::uint32_t>(value(random)) >> (32 - 8 * sizeof(Word)));
    std::memcpy(page.data() + i, &word, sizeof word);
  }
  return page;
}

enum Kind : std::int64_t { kHalf, kNoise, kZero, kBf16, kFp32 };
constexpr std::array kKindNames{"half", "noise", "zero", "bf16", "fp32"};

const Bytes& data(std::int64_t kind) {
  static const std::array<std::function<Bytes()>, 5> make{half, noise, [] { return Bytes(kPageBytes); },
                                                          weights<std::uint16_t>, weights<std::uint32_t>};
  static std::array<Bytes, 5> made;
  Bytes& page = made.at(std::size_t(kind));
  if (page.empty()) page = make.at(std::size_t(kind))();
  return page;
}

// Arguments: the kind of data and the codec's id; the label has their names.
const Codec& codec_of(benchmark::State& state) {
  const Codec& codec = **vmem::compress::find(vmem::compress::CodecId(state.range(1)));
  state.SetLabel(std::string(kKindNames.at(std::size_t(state.range(0)))).append(" ").append(codec.name()));
  return codec;
}

void compress(benchmark::State& state) {
  const Codec& codec = codec_of(state);
  const Bytes& page = data(state.range(0));
  Bytes out(page.size() + page.size() / 64);
  vmem::compress::Workspace workspace;
  std::size_t stored = 1;
  while (state.KeepRunning()) stored = codec.compress(page, out, workspace)->value_or(page.size());
  state.SetBytesProcessed(state.iterations() * std::int64_t(page.size()));
  state.counters["ratio"] = double(page.size()) / double(stored);
}

void decompress(benchmark::State& state) {
  const Codec& codec = codec_of(state);
  const Bytes& page = data(state.range(0));
  Bytes stored(page.size() + page.size() / 64), out(page.size());
  vmem::compress::Workspace workspace;
  stored.resize(codec.compress(page, stored, workspace)->value_or(0));
  while (state.KeepRunning()) benchmark::DoNotOptimize(codec.decompress(stored, out, workspace).has_value());
  state.SetBytesProcessed(state.iterations() * std::int64_t(page.size()));
}

// Splits a page into planes block by block, or joins them, as the shuffle codec does; the planes
// stay in the cache.
template <std::size_t kWidth>
void planes(benchmark::State& state, bool joining) {
  constexpr std::size_t kBlock = std::size_t{256} << 10, kElements = kBlock / kWidth;
  Bytes page = data(kFp32), room(kBlock);
  vmem::compress::Planes to{};
  vmem::compress::ConstPlanes from{};
  for (std::size_t i = 0; i < kWidth; ++i) from[i] = to[i] = &room[i * kElements];
  while (state.KeepRunning()) {
    for (std::size_t at = 0; at < page.size(); at += kBlock) {
      if (joining) {
        vmem::compress::join_planes(from, kElements, kWidth, &page[at]);
      } else {
        vmem::compress::split_planes(&page[at], kElements, kWidth, to);
      }
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * std::int64_t(page.size()));
}
template <std::size_t kWidth>
void split(benchmark::State& state) {
  planes<kWidth>(state, false);
}
template <std::size_t kWidth>
void join(benchmark::State& state) {
  planes<kWidth>(state, true);
}
BENCHMARK_TEMPLATE(split, 2);
BENCHMARK_TEMPLATE(split, 4);
BENCHMARK_TEMPLATE(split, 8);
BENCHMARK_TEMPLATE(join, 2);
BENCHMARK_TEMPLATE(join, 4);
BENCHMARK_TEMPLATE(join, 8);

void cases(benchmark::internal::Benchmark* bench) {
  const auto add = [bench](Kind kind, std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) {
      bench->Args({kind, std::int64_t(vmem::compress::parse_setting(name)->codec->id())});
    }
  };
  for (const Kind kind : {kHalf, kNoise, kZero}) {
    add(kind, {"none", "lz4", "lz4-4", "lz4-16", "zstd-huffman", "zstd-1", "zstd-3", "zstd-9"});
  }
  add(kBf16, {"lz4", "zstd-1", "zstd-huffman", "shuffle2+lz4", "shuffle2+zstd-huffman", "shuffle2+zstd-1"});
  add(kFp32, {"lz4", "zstd-1", "zstd-huffman", "shuffle4+lz4", "shuffle4+zstd-huffman", "shuffle4+zstd-1"});
}
BENCHMARK(compress)->Apply(cases);
BENCHMARK(decompress)->Apply(cases);

}  // namespace
