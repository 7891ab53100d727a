// Whether a page is compressed on its way to a disk or another node, and how. Only if that makes its way faster, there and back, or keeps
// more pages in a tier that is nearly full and makes the way no slower.
//
// Workers compress one page while another is on the path, so a page moves at the rate of whoever is slower:
//     min(workers × the codec's rate, the path's rate × ratio)
// The same holds on the way back. Both must be above the path's own rate, so a wrong ratio costs work, but no time.
//
// Pure: no clock, no I/O, no lock. A chooser is a value; copies of it, told the same, answer the same. There is one for a region, or for
// regions that are alike, since what is learned of a page is believed of the next one. For each page:
//
//     const SamplePlan plan = chooser.plan_sample(now);
//     if (!plan.codecs.empty()) chooser.observe(now, *take_sample(page, plan, workspace, clock));
//     const Decision decision = chooser.decide(now);
//     ... compress into decision.out_bytes; what does not fit goes as it is ...
//     if (decision.codec != nullptr) chooser.observe(Stored{decision.codec, page_bytes, stored_bytes, seconds});
//
// Pages may overlap: any number may be decided before the first of them is observed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "compress/estimate.hpp"
#include "compress/sample.hpp"

namespace vmem::compress {

// How things are when a page is about to move. Rates are those measured, of bytes on the path; 0 where nothing has been yet, and then
// pages go as they are.
struct Conditions {
  std::uint64_t page_bytes = 0;
  double write_bytes_s = 0;
  double read_bytes_s = 0;
  std::uint32_t compressors = 0;  // workers that compress while pages are written
  std::uint32_t decompressors = 0;
  double fill = 0;  // of the tier that the page goes to, 0 to 1
};

enum class Why : std::uint8_t {
  nothing_known,  // as it is: no candidate has been tried yet
  no_gain,        // as it is: no candidate makes this faster, or smaller without making it slower
  faster,         // compressed
  more_room,      // compressed: the tier is nearly full
};
std::string_view why_name(Why why);

struct Decision {
  const Codec* codec = nullptr;  // null: as it is
  std::uint64_t out_bytes = 0;   // room to compress into: what does not fit is not worth it
  double write_gain = 1;         // expected, over the page as it is
  double read_gain = 1;
  Why why = Why::nothing_known;
};

struct Stored {
  const Codec* codec = nullptr;
  std::uint64_t page_bytes = 0;
  std::optional<std::uint64_t> stored_bytes;  // nothing: it did not fit
  double seconds = 0;                         // that compressing it took a worker
};
struct Loaded {
  const Codec* codec = nullptr;
  std::uint64_t page_bytes = 0;
  double seconds = 0;  // that decompressing it took a worker
};

// Codecs that are each the best for some data, with rates of one core of an EPYC (Zen 5) on data that they shrink (bench/micro).
std::vector<Candidate> default_candidates();

class Chooser {
 public:
  explicit Chooser(std::span<const Candidate> candidates);

  // Asks for a sample when it can change the decision and is paid for: samples take 2 % of the time that pages take on the path, saved up if
  // that is less than one sample. While samples say no, they come after 1, 2, 4 .. 64 pages.
  SamplePlan plan_sample(const Conditions& now) const;
  // Of one page, which moves then.
  Decision decide(const Conditions& now);

  void observe(const Conditions& now, const Sample& sample);
  void observe(const Stored& stored);
  void observe(const Loaded& loaded);

 private:
  struct Gain {
    double write = 0, read = 0;
    double seconds = 0;  // a page's way there and back
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
  const Codec* current_ =
      nullptr;            // what the last page is compressed with; it is kept unless another is clearly better
  bool filling_ = false;  // the tier was nearly full at the last page
  double sample_credit_s_ = 0;
  std::uint64_t samples_ = 0;
  std::uint32_t refusals_ = 0;  // samples in a row that said no
  std::uint32_t pages_since_sample_ = 0;
};

}  // namespace vmem::compress
