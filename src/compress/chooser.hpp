// Decides whether and how to compress a page before a write to a disk or another node. It
// compresses if the write and the read get faster, or if a nearly full tier gains room and neither
// gets slower.
//
// Workers compress one page while another is on the path, so a page moves at the slower rate:
//     min(workers × the codec's rate, the path's rate × ratio)
// The same holds for reads. Both must exceed the path's own rate, so a wrong ratio costs work, but
// no time.
//
// Pure: no clock, no I/O, no lock. A chooser is a value: copies with equal input decide equally.
// There is one per region, or per group of similar regions: what it learns of a page it assumes of
// the next. For each page:
//
//     const SamplePlan plan = chooser.plan_sample(now);
//     if (!plan.codecs.empty()) chooser.observe(now, *take_sample(page, plan, workspace, clock));
//     const Decision decision = chooser.decide(now);
//     ... compress into decision.out_bytes; if it does not fit, store the page uncompressed ...
//     if (decision.codec != nullptr)
//       chooser.observe(Stored{decision.codec, page_bytes, stored_bytes, seconds});
//
// Pages may overlap: any number of decisions may precede the first observation.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "compress/estimate.hpp"
#include "compress/sample.hpp"

namespace vmem::compress {

// The conditions when a page is about to move. Rates are measured, in bytes on the path per second;
// 0: not measured yet, and pages stay uncompressed.
struct Conditions {
  std::uint64_t page_bytes = 0;
  double write_bytes_s = 0;
  double read_bytes_s = 0;
  std::uint32_t compressors = 0;  // workers that compress during writes
  std::uint32_t decompressors = 0;
  double fill = 0;  // of the destination tier, 0 to 1
};

enum class Why : std::uint8_t {
  nothing_known,  // uncompressed: no candidate has been tried yet
  no_gain,        // uncompressed: no candidate is faster, or smaller without being slower
  faster,         // compressed
  more_room,      // compressed: the tier is nearly full
};
std::string_view why_name(Why why);

struct Decision {
  const Codec* codec = nullptr;  // null: uncompressed
  std::uint64_t out_bytes = 0;   // room for the output; a larger output is not worthwhile
  double write_gain = 1;         // expected rate relative to the uncompressed page
  double read_gain = 1;
  Why why = Why::nothing_known;
};

struct Stored {
  const Codec* codec = nullptr;
  std::uint64_t page_bytes = 0;
  std::optional<std::uint64_t> stored_bytes;  // nothing: it did not fit
  double seconds = 0;                         // worker time for compression
};
struct Loaded {
  const Codec* codec = nullptr;
  std::uint64_t page_bytes = 0;
  double seconds = 0;  // worker time for decompression
};

// Codecs that are each best for some data, with their rates on one core of an EPYC (Zen 5) for data
// that they shrink (bench/micro).
std::vector<Candidate> default_candidates();

class Chooser {
 public:
  explicit Chooser(std::span<const Candidate> candidates);

  // Requests a sample if it can change the decision and the time budget covers it: 2 % of the
  // pages' time on the path, accumulated until it pays for a sample. While samples show no gain,
  // the interval grows from 1, 2, 4 to 64 pages.
  SamplePlan plan_sample(const Conditions& now) const;
  // For one page, which the caller then moves.
  Decision decide(const Conditions& now);

  void observe(const Conditions& now, const Sample& sample);
  void observe(const Stored& stored);
  void observe(const Loaded& loaded);

 private:
  struct Gain {
    double write = 0, read = 0;
    double seconds = 0;  // to write and read one page
  };
  static Gain gain(const Estimate& estimate, const Conditions& now);
  static bool reads_keep_up(const Estimate& estimate, const Conditions& now);
  static bool worth_trying(const Estimate& estimate, const Conditions& now);
  static Decision compressed(const Estimate& estimate, const Conditions& now, Why why);
  Decision choose(const Conditions& now) const;
  bool nearly_full(const Conditions& now) const;
  const Estimate* fastest(const Conditions& now) const;
  const Estimate* smallest(const Conditions& now) const;
  bool sample_is_due(std::span<const Estimate* const> tried) const;
  Estimate* find(const Codec* codec);

  std::vector<Estimate> estimates_;
  const Codec* current_ = nullptr;  // of the last page; kept unless another is clearly better
  bool filling_ = false;            // the tier was nearly full at the last page
  double sample_credit_s_ = 0;
  std::uint64_t samples_ = 0;
  std::uint32_t refusals_ = 0;  // samples in a row without a gain
  std::uint32_t pages_since_sample_ = 0;
};

}  // namespace vmem::compress
