// What workers of a tier do between a page and the form in which it is stored: whether it is compressed, with what, and back. Choosers are
// kept by kind of page, since what is learned of one page is believed of the next. Any number of threads, each with a workspace of its own.
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
  const compress::Codec* codec = nullptr;  // for every page; null: chosen for each
  compress::ClockNs now_ns;                // empty: the steady clock
};

// Of the option's value: off, auto or a codec. Errors: INVALID_OPTION.
Result<CompressionConfig> compression_config(std::string_view setting);

struct CompressionCounters {
  std::array<std::uint64_t, 256> pages{};  // stored, by codec; of 0 as they are
  std::uint64_t in_bytes = 0;              // of pages that were compressed, before
  std::uint64_t out_bytes = 0;             // and after
  std::uint64_t refused_pages = 0;         // did not become smaller, and are stored as they are
  std::uint64_t compress_ns = 0;           // of workers' time
  std::uint64_t decompress_ns = 0;
  std::uint64_t sample_ns = 0;
};

class PageCodec {
 public:
  // Pages are stored in whole blocks.
  PageCodec(CompressionConfig config, std::uint64_t block_bytes);

  bool on() const { return config_.on; }
  std::uint64_t now_ns() const { return config_.now_ns(); }

  struct Store {
    std::span<const std::byte> page;
    std::span<std::byte> out;  // as long as the page
    std::uint64_t kind = 0;    // of page
    compress::Conditions now;
    std::uint64_t measurements = 0;  // of the rate on the way there, so far
    double other_s = 0;              // that the worker has spent on the page already
  };
  struct Form {
    compress::CodecId codec = compress::kNone;
    std::uint64_t bytes = 0;  // of the page, or at the front of `out`
  };
  Form encode(const Store& store, compress::Workspace& workspace);

  struct Load {
    std::span<const std::byte> stored;
    std::span<std::byte> page;
    compress::CodecId codec = compress::kNone;
    std::uint64_t kind = 0;
  };
  // Errors: LOST (damaged), OUT_OF_MEMORY.
  Status decode(const Load& load, compress::Workspace& workspace);

  CompressionCounters counters() const;

 private:
  // A path that has much to do is measured again and again. While pages are compressed and it has not, the workers may be what holds pages up,
  // and the path faster by now than it was: then a few pages go as they are.
  static constexpr std::uint32_t kPagesBeforeProbe = 64;
  static constexpr std::uint32_t kPagesOfProbe = 8;
  static constexpr std::size_t kKinds = 1024;  // remembered; then all is learned anew
  struct Known {
    explicit Known(std::span<const compress::Candidate> candidates) : chooser(candidates) {}
    compress::Chooser chooser;
    std::uint64_t measurements = 0;
    std::uint32_t pages_since_measured = 0;
    bool sampling = false;  // somebody is; one is enough
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
