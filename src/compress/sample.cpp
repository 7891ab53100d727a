#include "compress/sample.hpp"

#include <algorithm>

namespace vmem::compress {
namespace {

// Long enough to contain repetitions a few KiB apart.
constexpr std::size_t kPieceBytes = std::size_t{8} << 10;
constexpr std::size_t kAlignment = 64;  // keeps elements of every width whole

struct Buffers : Workspace::Part {
  std::vector<std::byte> sample, stored, back;
};

double seconds(std::uint64_t from_ns, std::uint64_t to_ns) { return double(to_ns - from_ns) * 1e-9; }

// splitmix64: even neighbouring seeds give unrelated numbers.
std::uint64_t scramble(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

void gather(std::span<const std::byte> page, const SamplePlan& plan, std::vector<std::byte>& sample) {
  const std::size_t pieces = plan.bytes / kPieceBytes;
  const std::size_t part = pieces == 0 ? 0 : page.size() / pieces / kAlignment * kAlignment;
  if (part <= kPieceBytes) {
    sample.assign(page.begin(), page.end());
    return;
  }
  sample.clear();
  for (std::size_t i = 0; i < pieces; ++i) {
    const std::size_t places = (part - kPieceBytes) / kAlignment + 1;
    const std::size_t place = scramble(plan.seed * pieces + i) % places;
    const auto piece = page.subspan(i * part + place * kAlignment, kPieceBytes);
    sample.insert(sample.end(), piece.begin(), piece.end());
  }
}

Result<Trial> attempt(const Codec& codec, Buffers& buffers, Workspace& workspace, const ClockNs& now_ns) {
  Trial trial{.codec = &codec};
  const std::uint64_t started_ns = now_ns();
  VMEM_ASSIGN(const auto stored, codec.compress(buffers.sample, buffers.stored, workspace));
  const std::uint64_t compressed_ns = now_ns();
  trial.compress_s = seconds(started_ns, compressed_ns);
  if (!stored) return trial;
  trial.fraction = double(*stored) / double(buffers.sample.size());
  VMEM_TRY(codec.decompress(std::span(buffers.stored).first(*stored), buffers.back, workspace));
  trial.decompress_s = seconds(compressed_ns, now_ns());
  return trial;
}

}  // namespace

Result<Sample> take_sample(std::span<const std::byte> page, const SamplePlan& plan, Workspace& workspace,
                           const ClockNs& now_ns) {
  Sample sample;
  if (page.empty() || plan.codecs.empty()) return sample;
  const std::uint64_t started_ns = now_ns();
  auto& buffers = workspace.part<Buffers>();
  gather(page, plan, buffers.sample);
  buffers.stored.resize(buffers.sample.size() - 1);  // fits only if it shrinks
  buffers.back.resize(buffers.sample.size());
  sample.bytes = buffers.sample.size();
  for (const Codec* codec : plan.codecs) {
    VMEM_ASSIGN(const Trial trial, attempt(*codec, buffers, workspace, now_ns));
    sample.trials.push_back(trial);
  }
  sample.seconds = seconds(started_ns, now_ns());
  return sample;
}

}  // namespace vmem::compress
