// compress: pages of known data through a disk tier, to the disk and back, with several codecs,
// against the same pages uncompressed through another tier on the same disk.
#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>
#include <random>
#include <string_view>

#include "base/sizes.hpp"
#include "bench/context.hpp"
#include "bench/disk_pages.hpp"
#include "runtime/options/options.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kWorkingSet = std::uint64_t{512} << 20;
constexpr std::uint64_t kPage = std::uint64_t{32} << 20;
constexpr Goal kNeverSlower{Goal::Bound::at_least, 0.97, true, Goal::Needs::host};
constexpr Goal kFaster{Goal::Bound::at_least, 1.5, true, Goal::Needs::host};

enum class Data { zeros, text, half, bf16, noise };
struct NamedData {
  Data data;
  const char* name;
};
constexpr std::array kData{NamedData{Data::zeros, "zeros"}, NamedData{Data::text, "text"}, NamedData{Data::half, "2:1"},
                           NamedData{Data::bf16, "bf16 weights"}, NamedData{Data::noise, "random"}};
// auto comes first: the goal applies to it.
constexpr std::array kCodecs{"auto", "lz4", "zstd-1", "shuffle2+zstd-huffman"};

void fill_noise(std::span<std::byte> page, std::mt19937_64& random) {
  for (std::size_t i = 0; i < page.size(); i += 8) {
    const std::uint64_t word = random();
    std::memcpy(page.data() + i, &word, 8);
  }
}

// Words of a small vocabulary with a skewed distribution, as in logs and source text.
void fill_text(std::span<std::byte> page, std::mt19937_64& random) {
  std::array<std::string, 512> words;
  for (std::string& word : words) {
    for (std::uint64_t left = 2 + random() % 9; left > 0; --left) word += char('a' + random() % 26);
    word += random() % 12 == 0 ? '\n' : ' ';
  }
  for (std::size_t at = 0; at < page.size();) {
    const std::uint64_t a = random() % 512, b = random() % 512, c = random() % 512;
    const std::string& word = words[std::min({a, b, c})];
    const std::size_t bytes = std::min(word.size(), page.size() - at);
    std::memcpy(page.data() + at, word.data(), bytes);
    at += bytes;
  }
}

void fill_bf16(std::span<std::byte> page, std::mt19937_64& random) {
  std::normal_distribution<float> weight(0, 0.02F);
  for (std::size_t i = 0; i < page.size(); i += 2) {
    const auto word = std::uint16_t(std::bit_cast<std::uint32_t>(weight(random)) >> 16);
    std::memcpy(page.data() + i, &word, 2);
  }
}

void fill_page(Data data, std::span<std::byte> page, std::mt19937_64& random) {
  switch (data) {
    case Data::zeros:
      std::memset(page.data(), 0, page.size());
      return;
    case Data::text:
      return fill_text(page, random);
    case Data::half:
      // Beyond the first 4 KiB, every other 64 bytes repeat earlier ones.
      fill_noise(page, random);
      for (std::size_t i = 4096 + 64; i < page.size(); i += 128) std::memcpy(&page[i], &page[i % 4096], 64);
      return;
    case Data::bf16:
      return fill_bf16(page, random);
    case Data::noise:
      return fill_noise(page, random);
  }
}

struct Plan {
  std::vector<StoreDirectory> directories;
  std::uint64_t page_bytes, pages;
  bool poll;
};

Result<Plan> plan(const Settings& settings) {
  Plan plan;
  VMEM_ASSIGN(const Options options, disk_options(settings));
  plan.directories = options.nvme;
  plan.poll = options.nvme_poll;
  plan.page_bytes = settings.page_bytes.value_or(kPage);
  if (plan.page_bytes % 4096 != 0)
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--pages {} is not a multiple of 4 KiB", plan.page_bytes));
  plan.pages = std::max<std::uint64_t>(settings.working_set_bytes.value_or(kWorkingSet) / plan.page_bytes, 1);
  return plan;
}

struct Both {
  double rate = 0, store_rate = 0, load_rate = 0;  // GB/s
};

// Stores every page, then loads every page.
Result<Both> there_and_back(DiskPages& disk, const PageMemory& from, const PageMemory& to) {
  Both both;
  VMEM_ASSIGN(both.store_rate, disk.store(from));
  VMEM_ASSIGN(both.load_rate, disk.load(to));
  both.rate = 2 / (1 / both.store_rate + 1 / both.load_rate);
  return both;
}

Status measure(Context& context, const Plan& plan, const NamedData& data, const char* codec, const PageMemory& from,
               const PageMemory& to) {
  const DiskPages::Config as_is{plan.directories, "off", plan.page_bytes, plan.pages, context.settings.disk_bytes_s,
                                plan.poll};
  DiskPages::Config compressed = as_is;
  compressed.compress = codec;
  VMEM_ASSIGN(const auto plain, DiskPages::create(as_is));
  VMEM_ASSIGN(const auto disk, DiskPages::create(compressed));
  // Warm-up: files are newly allocated and the codec choice knows nothing of the data yet.
  VMEM_TRY(there_and_back(*plain, from, to));
  VMEM_TRY(there_and_back(*disk, from, to));
  const tiers::CompressionCounters before = disk->counters();
  Record record;
  Samples stores, loads, plain_stores, plain_loads;
  const auto as_they_are = [&]() -> Result<double> {
    VMEM_ASSIGN(const Both both, there_and_back(*plain, from, to));
    plain_stores.add(both.store_rate);
    plain_loads.add(both.load_rate);
    return both.rate;
  };
  const auto with_codec = [&]() -> Result<double> {
    for (std::uint64_t i = 0; i < to.count(); ++i) std::memset(to.page(i).data(), 0xa5, to.page_bytes());
    VMEM_ASSIGN(const Both both, there_and_back(*disk, from, to));
    stores.add(both.store_rate);
    loads.add(both.load_rate);
    if (record.mismatch.empty()) record.mismatch = difference(from, to);
    return both.rate;
  };
  const std::string label = fmt::format("compress {}, {}", codec, data.name);
  VMEM_ASSIGN(const Measured measured, measure_shown(context, label, as_they_are, with_codec));
  const tiers::CompressionCounters after = disk->counters();
  record.scenario = "compress";
  record.variant = fmt::format("{}, {}", codec, data.name);
  record.options = {{"codec", codec},
                    {"data", data.name},
                    {"page_bytes", plan.page_bytes},
                    {"working_set_bytes", from.bytes()},
                    {"repeats", context.settings.repeats},
                    {"workers", tiers::DiskTier::default_workers()}};
  if (context.settings.disk_bytes_s) record.options["disk_bytes_per_s"] = *context.settings.disk_bytes_s;
  record.unit = "GB/s";
  record.limit_name = "the same pages as they are, on the same disk";
  record.limit_is = Record::LimitIs::reference;
  if (std::string_view(codec) == "auto") record.goal = data.data == Data::half ? kFaster : kNeverSlower;
  record.set(measured);
  record.verified = record.mismatch.empty();
  const std::uint64_t in = after.in_bytes - before.in_bytes, out = after.out_bytes - before.out_bytes;
  record.details["verified_bytes"] = record.verified ? from.bytes() * std::uint64_t(context.settings.repeats) : 0;
  record.details["store_gb_per_s"] = stores.median();
  record.details["load_gb_per_s"] = loads.median();
  record.details["limit_store_gb_per_s"] = plain_stores.median();
  record.details["limit_load_gb_per_s"] = plain_loads.median();
  record.details["compressed_bytes"] = in;
  record.details["compressed_to_bytes"] = out;
  record.details["pages_as_they_are"] = after.pages[0] - before.pages[0];
  context.records.push_back(std::move(record));
  context.show_rows();
  return {};
}

}  // namespace

Status run_compress(Context& context) {
  VMEM_ASSIGN(const Plan what, plan(context.settings));
  std::vector<std::string> codecs(kCodecs.begin(), kCodecs.end());
  for (const auto& [name, value] : context.settings.runtime_options) {
    if (name == "compress") codecs = {value};
  }
  const std::uint64_t bytes = what.page_bytes * what.pages;
  VMEM_TRY(check_host_memory("compress", 2 * bytes));
  VMEM_TRY(check_disk_room("compress", what.directories, {.tier = bytes, .beside = bytes}));
  VMEM_ASSIGN(const PageMemory from, PageMemory::create(what.page_bytes, what.pages));
  VMEM_ASSIGN(const PageMemory to, PageMemory::create(what.page_bytes, what.pages));
  for (const NamedData& data : kData) {
    std::mt19937_64 random(context.settings.seed);
    for (std::uint64_t i = 0; i < from.count(); ++i) fill_page(data.data, from.page(i), random);
    for (const std::string& codec : codecs) VMEM_TRY(measure(context, what, data, codec.c_str(), from, to));
  }
  if (context.settings.disk_bytes_s && !context.records.empty()) {
    context.records.back().notes.push_back(
        fmt::format("the disk was slowed down to {} a second each way", format_bytes(*context.settings.disk_bytes_s)));
  }
  return {};
}

}  // namespace vmem::bench
