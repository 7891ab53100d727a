#include "bench/scenarios/whole_region.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/sizes.hpp"
#include "bench/machine.hpp"

namespace vmem::bench {
namespace {

// The limit's own copy of the working set needs room beside the runtime's.
Status check_host_room(const Sizes& sizes) {
  const std::uint64_t wanted = sizes.host_bytes + sizes.working_set_bytes;
  const std::uint64_t available = read_machine().memory_available_bytes;
  if (wanted <= available) return {};
  return fail(
      VMEM_ERROR_INVALID_OPTION,
      fmt::format("measuring this takes {} of host memory (the host pool of {} and a pinned copy of the working set), "
                  "but {} are available; lower --hbm or --ratio",
                  format_bytes(wanted), format_bytes(sizes.host_bytes), format_bytes(available)));
}

}  // namespace

WholeRegion::WholeRegion(Context& context, gpu::PinnedBuffer pinned, Session session, Stream stream, Region region,
                         ResultWords sum)
    : context_(&context),
      pinned_(std::move(pinned)),
      session_(std::move(session)),
      stream_(std::move(stream)),
      region_(std::move(region)),
      sum_(std::move(sum)) {}

Result<WholeRegion> WholeRegion::create(Context& context, const Sizes& sizes) {
  const Gpu& gpu = context.gpu;
  VMEM_TRY(check_host_room(sizes));
  VMEM_ASSIGN(auto pinned, allocate_pinned(gpu, sizes.working_set_bytes));
  VMEM_ASSIGN(auto session, Session::start(context.settings, sizes, gpu));
  VMEM_ASSIGN(auto stream, make_stream(gpu));
  VMEM_ASSIGN(auto region, Region::allocate(sizes.working_set_bytes, gpu.ordinal(), stream.get()));
  VMEM_ASSIGN(auto sum, ResultWords::create(gpu, 1));
  WholeRegion whole(context, std::move(pinned), std::move(session), std::move(stream), std::move(region),
                    std::move(sum));
  VMEM_TRY(context.launcher.launch(kernels::fill, context.launcher.full_grid(), whole.stream_.get(),
                                   reinterpret_cast<std::uint64_t*>(whole.pinned_.data()), 0, whole.bytes() / 8,
                                   context.settings.seed));
  VMEM_TRY(fill_region(context, whole.region_, whole.stream_, context.settings.seed));
  return whole;
}

Result<double> WholeRegion::time_in_place(const WholeKernel& kernel, std::uint64_t bytes, std::uint64_t expected) {
  CUdeviceptr address = 0;
  BENCH_CALL(context_->gpu, cuMemHostGetDevicePointer, &address, pinned_.data(), 0);
  VMEM_TRY(sum_.clear(stream_.get()));
  VMEM_TRY(stream_.synchronize());
  const Stopwatch watch;
  VMEM_TRY(kernel.launch(reinterpret_cast<const std::uint64_t*>(address), bytes, stream_.get(), sum_.device()));
  VMEM_TRY(stream_.synchronize());
  const double rate = static_cast<double>(kernel.read_bytes(bytes)) / watch.nanoseconds();
  std::uint64_t found = 0;
  VMEM_TRY(sum_.read(stream_, &found));
  if (found != expected) return fail(VMEM_ERROR_INTERNAL, "the kernel reads wrong data even from plain pinned memory");
  return rate;
}

Result<double> WholeRegion::time_region(const WholeKernel& kernel, std::uint64_t& found) {
  VMEM_TRY(sum_.clear(stream_.get()));
  VMEM_TRY(stream_.synchronize());
  const Stopwatch watch;
  VMEM_TRY(with_range(region_.at(0), region_.bytes(), VMEM_READ, stream_.get(),
                      [&] { return kernel.launch(region_.words(), region_.bytes(), stream_.get(), sum_.device()); }));
  VMEM_TRY(stream_.synchronize());
  const double rate = static_cast<double>(kernel.read_bytes(region_.bytes())) / watch.nanoseconds();
  VMEM_TRY(sum_.read(stream_, &found));
  return rate;
}

Result<WholeRead> WholeRegion::measure(const WholeKernel& kernel) {
  const int repeats = context_->settings.repeats;
  const std::uint64_t expected = kernel.expected(bytes());
  WholeRead read;
  std::uint64_t found = 0;
  VMEM_TRY(time_region(kernel, found));  // settles which pages are in HBM
  VMEM_ASSIGN(const vmem_statistics before, quiet_statistics());
  VMEM_ASSIGN(const std::uint64_t outside, bytes_outside_hbm());
  if (outside == 0)
    return fail(VMEM_ERROR_INVALID_OPTION, "the region lies in HBM altogether; raise --ratio, or lower --hbm");
  const std::uint64_t expected_outside = kernel.expected(outside);
  read.resident_share = 1.0 - static_cast<double>(outside) / static_cast<double>(bytes());
  VMEM_TRY(time_in_place(kernel, outside, expected_outside));  // loads the kernel
  context_->progress.begin("reading", static_cast<std::uint64_t>(repeats));
  const auto in_place = [&] { return time_in_place(kernel, outside, expected_outside); };
  const auto region = [&]() -> Result<double> {
    VMEM_ASSIGN(const double rate, time_region(kernel, found));
    context_->progress.advance();
    if (found != expected && read.mismatch.empty()) {
      VMEM_ASSIGN(read.mismatch,
                  explain_checksum(*context_, region_, stream_, context_->settings.seed, found, expected));
    }
    read.processed.add(rate);
    return rate * (1.0 - read.resident_share);
  };
  VMEM_ASSIGN(read.rates, measure_interleaved(repeats, in_place, region));
  VMEM_ASSIGN(const vmem_statistics after, read_statistics());
  read.traffic = traffic_between(before, after);
  return read;
}

Record WholeRegion::record(const Sizes& sizes, std::string variant, const WholeRead& read) const {
  Record record;
  record.variant = std::move(variant);
  record.options = size_options(context_->settings, sizes);
  record.options["page_bytes"] = region_.page_bytes();
  record.unit = "GB/s";
  record.limit_name = "the same kernel in place, over as much pinned memory as lies outside HBM";
  record.set(read.rates);
  record.mismatch = read.mismatch;
  record.verified = read.mismatch.empty();
  record.details["processed_gb_per_s"] = read.processed.median();
  record.details["processed_spread"] = read.processed.spread();
  record.details["resident_share"] = read.resident_share;
  record.details["moved_in_bytes"] = read.traffic.in_bytes;
  record.notes.push_back(
      fmt::format("{}: the kernel read {:.2f} GB/s; {:.1f} % of the region was in HBM; limit spread "
                  "{:.1f} %",
                  record.variant, read.processed.median(), 100 * read.resident_share, 100 * read.rates.limit.spread()));
  return record;
}

Result<std::uint64_t> WholeRegion::bytes_outside_hbm() const {
  vmem_pointer_info info{};
  VMEM_TRY(check(vmem_query(region_.at(0), &info)));
  return region_.bytes() - std::min<std::uint64_t>(info.bytes_hbm, region_.bytes());
}

}  // namespace vmem::bench
