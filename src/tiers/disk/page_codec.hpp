// Converts pages to their stored form and back, for a tier's workers: decides whether and how to
// compress. One chooser per kind of page applies what it learned of one page to the next. Any
// number of threads, each with its own workspace.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>

#include "base/status.hpp"
#include "compress/chooser.hpp"
#include "compress/fill.hpp"
#include "compress/registry.hpp"

namespace vmem::tiers {

struct CompressionConfig {
  bool on = false;
  const compress::Codec* codec = nullptr;  // for every page; null: chosen per page
  compress::ClockNs now_ns;                // empty: the steady clock
};

// Parses the option's value: off, auto or a codec. Errors: INVALID_OPTION.
Result<CompressionConfig> compression_config(std::string_view setting);

struct CompressionCounters {
  std::array<std::uint64_t, 256> pages{};  // stored, by codec; 0: uncompressed
  std::uint64_t in_bytes = 0;              // of compressed pages, before compression
  std::uint64_t out_bytes = 0;             // and after
  std::uint64_t refused_pages = 0;         // stored uncompressed, because they did not fit
  std::uint64_t compress_ns = 0;           // worker time
  std::uint64_t decompress_ns = 0;
  std::uint64_t sample_ns = 0;
};

class PageCodec {
 public:
  // `block_bytes`: pages are stored in whole blocks of this size.
  PageCodec(CompressionConfig config, std::uint64_t block_bytes);

  bool on() const { return config_.on; }
  std::uint64_t now_ns() const { return config_.now_ns(); }

  struct Store {
    std::span<const std::byte> page;
    std::span<std::byte> out;  // as long as the page
    std::uint64_t kind = 0;    // of page
    compress::Conditions now;
    std::uint64_t measurements = 0;  // of the write rate, so far
    double other_s = 0;              // worker time already spent on the page
  };
  struct Form {
    compress::CodecId codec = compress::kNone;
    std::uint64_t bytes = 0;  // stored bytes: of `page`, or at the front of `out` if compressed
  };
  Form encode(const Store& store, compress::Workspace& workspace);

  struct Load {
    std::span<const std::byte> stored;
    std::span<std::byte> page;
    compress::CodecId codec = compress::kNone;
    std::uint64_t kind = 0;
  };
  // Errors: LOST (damaged bytes), UNSUPPORTED (unknown codec), OUT_OF_MEMORY.
  Status decode(const Load& load, compress::Workspace& workspace);

  CompressionCounters counters() const;

 private:
  // A busy path is measured continually. If pages are compressed and no measurement comes, the
  // workers may be the bottleneck and the path faster than assumed: after kPagesBeforeProbe pages,
  // the next kPagesOfProbe go uncompressed.
  static constexpr std::uint32_t kPagesBeforeProbe = 64;
  static constexpr std::uint32_t kPagesOfProbe = 8;
  static constexpr std::size_t kKinds = 1024;  // beyond it, all kinds are forgotten
  struct Known {
    explicit Known(std::span<const compress::Candidate> candidates) : chooser(candidates) {}
    compress::Chooser chooser;
    std::uint64_t measurements = 0;
    std::uint32_t pages_since_measured = 0;
    bool sampling = false;  // a worker is taking a sample: one at a time
  };
  Known& known(std::uint64_t kind);
  compress::Decision decide(const Store& store, compress::Workspace& workspace);
  static bool probes(Known& known, std::uint64_t measurements);
  Form as_it_is(const Store& store);
  Form stored_as(compress::CodecId codec, const Store& store, std::size_t bytes);

  const CompressionConfig config_;
  const std::uint64_t block_bytes_;
  const std::vector<compress::Candidate> candidates_ = compress::default_candidates();
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, Known> known_;
  CompressionCounters counters_;
};

}  // namespace vmem::tiers
