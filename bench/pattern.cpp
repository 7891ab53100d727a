#include "bench/pattern.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "bench/kernels/word.hpp"
#include "bench/machine.hpp"

namespace vmem::bench {
namespace {

// Sums body(begin, end) over [0, count), split between all cores.
template <class Body>
std::uint64_t parallel_sum(std::uint64_t count, Body body) {
  const std::uint64_t workers = std::max(1u, read_machine().cores);
  std::vector<std::uint64_t> sums(workers);
  {
    std::vector<std::jthread> threads;
    threads.reserve(workers);
    for (std::uint64_t i = 0; i < workers; ++i)
      threads.emplace_back(
          [&, i] { sums[i] = body(count / workers * i, i + 1 == workers ? count : count / workers * (i + 1)); });
  }
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  return total;
}

std::string describe_bad_word(std::uint64_t index, std::uint64_t count, const Region& region, std::uint64_t seed,
                              std::uint64_t delta) {
  std::uint64_t found = 0;
  const bool read = vmem_read(&found, region.words() + index, sizeof(found)) == VMEM_OK;
  return fmt::format("{} of {} words are wrong, the first at byte offset {}: expected {:#018x}, {}", count,
                     region.bytes() / 8, index * 8, pattern_word(seed, index) + delta,
                     read ? fmt::format("found {:#018x}", found) : "and reading it failed");
}

// Checks a few places through the CPU: vmem_read must deliver the data that the GPU verified.
Result<std::string> verify_samples(const Region& region, std::uint64_t seed, std::uint64_t delta) {
  constexpr std::uint64_t kSamples = 8;
  std::vector<std::uint64_t> words(std::min<std::uint64_t>(region.bytes(), 64 << 10) / 8);
  for (std::uint64_t sample = 0; sample < kSamples; ++sample) {
    const std::uint64_t first = (region.bytes() / 8 - words.size()) * sample / (kSamples - 1);
    VMEM_TRY(check(vmem_read(words.data(), region.words() + first, words.size() * 8)));
    for (std::uint64_t i = 0; i < words.size(); ++i) {
      const std::uint64_t expected = pattern_word(seed, first + i) + delta;
      if (words[i] != expected)
        return fmt::format("vmem_read at byte offset {} gives {:#018x}, expected {:#018x}", (first + i) * 8, words[i],
                           expected);
    }
  }
  return std::string();
}

}  // namespace

Result<ResultWords> ResultWords::create(const Gpu& gpu, unsigned count) {
  VMEM_ASSIGN(auto memory, allocate_device(gpu, count * sizeof(std::uint64_t)));
  return ResultWords(gpu, std::move(memory), count);
}

Status ResultWords::clear(CUstream stream, std::uint8_t byte) const {
  BENCH_CALL(*gpu_, cuMemsetD8Async, memory_.get(), byte, count_ * sizeof(std::uint64_t), stream);
  return {};
}

Status ResultWords::read(const Stream& stream, std::uint64_t* out) const {
  BENCH_CALL(*gpu_, cuMemcpyDtoHAsync, out, memory_.get(), count_ * sizeof(std::uint64_t), stream.get());
  return stream.synchronize();
}

std::uint64_t chunk_bytes(const Settings& settings, const Region& region) {
  return std::min(settings.chunk_bytes.value_or(region.page_bytes()), region.bytes());
}

Status fill_region(Context& context, const Region& region, const Stream& stream, std::uint64_t seed) {
  context.progress.begin("filling", region.bytes());
  VMEM_TRY(for_each_chunk(context, region, [&](std::uint64_t offset, std::uint64_t bytes) {
    return with_range(region.at(offset), bytes, VMEM_WRITE | VMEM_DISCARD, stream.get(), [&] {
      return context.launcher.launch(kernels::fill, context.launcher.full_grid(), stream.get(), region.words(offset),
                                     offset / 8, bytes / 8, seed);
    });
  }));
  return stream.synchronize();
}

Result<std::string> verify_region(Context& context, const Region& region, const Stream& stream, std::uint64_t seed,
                                  std::uint64_t delta) {
  VMEM_ASSIGN(const ResultWords least, ResultWords::create(context.gpu, 2));
  VMEM_TRY(least.clear(stream.get(), 0xff));  // all ones: no bad index yet; the count wraps from -1
  context.progress.begin("verifying", region.bytes());
  VMEM_TRY(for_each_chunk(context, region, [&](std::uint64_t offset, std::uint64_t bytes) {
    return with_range(region.at(offset), bytes, VMEM_READ, stream.get(), [&] {
      return context.launcher.launch(kernels::verify, context.launcher.full_grid(), stream.get(), region.words(offset),
                                     offset / 8, bytes / 8, seed, delta, least.device());
    });
  }));
  std::uint64_t bad[2] = {};
  VMEM_TRY(least.read(stream, bad));
  if (bad[1] + 1 != 0) return describe_bad_word(bad[0], bad[1] + 1, region, seed, delta);
  return verify_samples(region, seed, delta);
}

std::uint64_t expected_checksum(std::uint64_t seed, std::uint64_t words) {
  return parallel_sum(words, [seed](std::uint64_t begin, std::uint64_t end) {
    std::uint64_t total = 0;
    for (std::uint64_t i = begin; i < end; ++i) total += checksum_term(i, pattern_word(seed, i));
    return total;
  });
}

std::uint64_t expected_random(std::uint64_t pattern_seed, std::uint64_t lines, std::uint64_t reads,
                              std::uint64_t read_seed) {
  return parallel_sum(reads, [=](std::uint64_t begin, std::uint64_t end) {
    std::uint64_t total = 0;
    for (std::uint64_t read = begin; read < end; ++read) {
      const std::uint64_t first = random_line(read_seed, read, lines) * kLineWords;
      for (std::uint64_t i = first; i < first + kLineWords; ++i)
        total += checksum_term(i, pattern_word(pattern_seed, i));
    }
    return total;
  });
}

Result<std::string> explain_checksum(Context& context, const Region& region, const Stream& stream, std::uint64_t seed,
                                     std::uint64_t found, std::uint64_t expected) {
  if (found == expected) return std::string();
  VMEM_ASSIGN(std::string where, verify_region(context, region, stream, seed, 0));
  return fmt::format("checksum {:#018x}, expected {:#018x}; {}", found, expected,
                     where.empty() ? "every word is right now, so a kernel saw an older or unfinished page" : where);
}

}  // namespace vmem::bench
