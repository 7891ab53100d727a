#include "replay/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/sizes.hpp"
#include "migration/mover_options.hpp"
#include "pagetable/types.hpp"

namespace vmem::replay {
namespace {

// Steps of the search for the smallest HBM: the answer is within a hundredth of the peak.
constexpr int kSearchSteps = 8;
// More than that is no machine's.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 46;
// What is measured begins long after host memory was pinned.
constexpr std::uint64_t kPinnedBytesPerS = 1'000'000'000'000;

std::uint64_t whole_granules(double bytes) {
  return std::uint64_t(bytes) / pagetable::kGranuleBytes * pagetable::kGranuleBytes;
}

class Planner {
 public:
  Planner(const trace::Trace& trace, const PlanRequest& request) : trace_(trace), request_(request) {}

  Result<Plan> make() {
    plan_.steady = steady_part(trace_);
    if (plan_.steady.launches == 0) return fail(VMEM_ERROR_INVALID_VALUE, "there are no launches in the trace");
    program_ = extract(trace_, {.from_ns = plan_.steady.from_ns});
    plan_.largest_launch_bytes = program_.largest_launch_bytes();
    // Pages, and frames on their way, take a little more than what lives.
    const std::uint64_t peak = peak_bytes(trace_);
    if (peak > kMostBytes) return fail(VMEM_ERROR_INVALID_VALUE, "the trace's blocks have impossible sizes");
    least_hbm_ = least_hbm();
    fits_hbm_ = std::max(least_hbm_, whole_granules(double(peak) * 1.25) + kSmallestHbm);
    VMEM_ASSIGN(plan_.fits, played(fits_hbm_));
    if (plan_.fits.time_ns == 0)
      return fail(VMEM_ERROR_INVALID_VALUE, "no launch of the trace has a time: record more of the program");
    VMEM_ASSIGN(const std::vector<std::uint64_t> sizes, sizes_to_try());
    for (const std::uint64_t hbm : sizes) {
      const Status added = add_row(hbm);
      // Default sizes that the chain of tiers cannot serve are left out.
      if (!added && !(request_.hbm_bytes.empty() && is_too_small(added.error()))) return std::unexpected(added.error());
    }
    if (request_.within) VMEM_TRY(search());
    return std::move(plan_);
  }

 private:
  static bool is_too_small(const Error& error) { return error.status == VMEM_ERROR_OUT_OF_MEMORY; }

  // Errors: those of replay; OUT_OF_MEMORY if all tiers together cannot hold the program.
  Result<Measured> played(std::uint64_t hbm_bytes) const {
    auto measured = played_in(hbm_bytes);
    if (measured || !is_too_small(measured.error())) return measured;
    const Chain& chain = request_.chain;
    return fail(VMEM_ERROR_OUT_OF_MEMORY,
                fmt::format("{} of HBM, {} of another GPU, {} of host memory and {} below it are too little for the "
                            "program, which takes {}; pages in transit need room, too: raise --host, --peer or --below",
                            format_bytes(hbm_bytes), format_bytes(chain.peer_bytes), format_bytes(chain.host_bytes),
                            format_bytes(chain.below_bytes), format_bytes(peak_bytes(trace_))));
  }

  Result<Measured> played_in(std::uint64_t hbm_bytes) const {
    return replay(trace_, {.hbm_bytes = hbm_bytes,
                           .chain = request_.chain,
                           .page_bytes = request_.page_bytes,
                           .pinned_bytes_per_s = kPinnedBytesPerS,
                           .from_ns = plan_.steady.from_ns});
  }

  // Beside slabs, which take up to a quarter (replay.cpp).
  std::uint64_t least_hbm() const {
    const std::uint64_t pages = request_.page_bytes.value_or(0) * kPagesInHbm;
    const std::uint64_t needed = std::max({kSmallestHbm, plan_.largest_launch_bytes, pages});
    const std::uint64_t least = std::min(needed + peak_slab_bytes(trace_), needed + (needed + 2) / 3);
    return whole_granules(double(least + pagetable::kGranuleBytes - 1));
  }

  Result<std::vector<std::uint64_t>> sizes_to_try() const {
    std::vector<std::uint64_t> sizes = request_.hbm_bytes;
    if (sizes.empty()) {
      for (const double part : kOverflows) sizes.push_back(whole_granules(double(plan_.steady.peak_bytes) / part));
      std::erase_if(sizes, [&](std::uint64_t hbm) { return hbm < least_hbm_; });
    }
    for (const std::uint64_t hbm : sizes) {
      if (hbm < least_hbm_)
        return fail(VMEM_ERROR_INVALID_VALUE,
                    fmt::format("{} of HBM is too little: the largest launch, small allocations and the pages need {}",
                                format_bytes(hbm), format_bytes(least_hbm_)));
    }
    std::ranges::sort(sizes, std::greater());
    return sizes;
  }

  Status add_row(std::uint64_t hbm) {
    PlanRow row{.hbm_bytes = hbm, .measured = {}, .bound = {}, .schedule = {}};
    VMEM_ASSIGN(row.measured, played(hbm));
    const Chain& chain = request_.chain;
    // The nearest link carries the most. It is the peer's and host memory's together, as far as a
    // bound can tell which bytes take which.
    const bool peer = chain.peer_bytes != 0;
    const trace::Machine near{
        .hbm_bytes = hbm,
        .in_bytes_per_s = double(chain.link.in_bytes_per_s + (peer ? chain.peer_link.in_bytes_per_s : 0)),
        .out_bytes_per_s = double(chain.link.out_bytes_per_s + (peer ? chain.peer_link.out_bytes_per_s : 0))};
    row.bound = trace::bound(program_, near);
    row.schedule = trace::schedule(program_, near, trace::Writes::all);
    // Each farther link carries what the memory before it cannot hold.
    if (peer) slow_down(row, hbm + chain.peer_bytes, chain.link.in_bytes_per_s, chain.link.out_bytes_per_s);
    if (chain.below_bytes != 0)
      slow_down(row, hbm + chain.peer_bytes + chain.host_bytes, chain.below_in_bytes_per_s,
                chain.below_out_bytes_per_s);
    plan_.rows.push_back(std::move(row));
    return {};
  }

  // As if all memory before a link were HBM.
  void slow_down(PlanRow& row, std::uint64_t before_bytes, std::uint64_t in_rate, std::uint64_t out_rate) const {
    const trace::Machine far{
        .hbm_bytes = before_bytes, .in_bytes_per_s = double(in_rate), .out_bytes_per_s = double(out_rate)};
    row.bound.time_ns = std::max(row.bound.time_ns, trace::bound(program_, far).time_ns);
    row.schedule.time_ns = std::max(row.schedule.time_ns, trace::schedule(program_, far, trace::Writes::all).time_ns);
  }

  Status search() {
    const double most_ns = double(plan_.fits.time_ns) * (1 + *request_.within);
    std::uint64_t enough = fits_hbm_, short_of = least_hbm_;
    for (int i = 0; i < kSearchSteps && enough > short_of; ++i) {
      const std::uint64_t middle = i == 0 ? short_of : whole_granules(double(enough + short_of) / 2);
      const auto measured = played(middle);
      if (!measured && !is_too_small(measured.error())) return std::unexpected(measured.error());
      const bool suffices = measured && double(measured->time_ns) <= most_ns;
      (suffices ? enough : short_of) = middle;
    }
    plan_.smallest_hbm_bytes = enough;
    return {};
  }

  const trace::Trace& trace_;
  const PlanRequest& request_;
  trace::Program program_;
  std::uint64_t least_hbm_ = 0, fits_hbm_ = 0;
  Plan plan_;
};

std::pair<std::uint64_t, std::string_view> busiest(const Measured& measured) {
  return std::max({std::pair(measured.gpu_ns, std::string_view("computing")),
                   {measured.in_busy_ns, "link in"},
                   {measured.out_busy_ns, "link out"},
                   {measured.peer_in_busy_ns, "peer in"},
                   {measured.peer_out_busy_ns, "peer out"},
                   {measured.below_in_busy_ns, "below in"},
                   {measured.below_out_busy_ns, "below out"},
                   {measured.mover_busy_ns, "mover"}},
                  [](const auto& one, const auto& other) { return one.first < other.first; });
}

}  // namespace

std::string_view limit_of(const Measured& measured) { return busiest(measured).second; }
double busiest_part(const Measured& measured) { return double(busiest(measured).first) / double(measured.time_ns); }

Result<Plan> plan(const trace::Trace& trace, const PlanRequest& request) { return Planner(trace, request).make(); }

}  // namespace vmem::replay
