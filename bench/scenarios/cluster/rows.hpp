// The groups of rows of `vmem bench cluster`, and what several of them use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "bench/bare_network.hpp"
#include "bench/context.hpp"
#include "bench/local_cluster.hpp"
#include "bench/pattern.hpp"
#include "bench/runtime.hpp"

namespace vmem::bench {

// Each adds its records and shows them.
Status measure_published(Context&);  // a region read from end to end
Status measure_one_page(Context&);   // a page fetched alone
Status measure_fan_out(Context&);    // one table for one, two and three readers
Status measure_overflow(Context&);   // pages that a daemon's memory or HBM takes
Status measure_drain(Context&);      // a daemon that is emptied under load

// --working-set, else 512 MiB.
std::uint64_t working_set_bytes(const Settings& settings);
// Starts a cluster if the settings name none, and names it in them. Errors: those of LocalCluster.
Result<std::optional<LocalCluster>> cluster_for(Settings& settings, const LocalCluster::Lends& lends);
// How vmem reaches another process of this machine with these settings.
Result<NodePath> path_here(const Settings& settings);
// HBM as given, else 1 GiB (emulated: 256 MiB), and host memory for all of the bytes.
Sizes sizes_in_memory(const Settings& settings, const Gpu& gpu, std::uint64_t bytes);
// The pattern, published under the name with so many copies. This process keeps it while the region
// lives.
Result<Region> publish_pattern(Context& context, const Stream& stream, const std::string& name, std::uint64_t bytes,
                               std::uint32_t copies);
// A name that no other run publishes.
std::string name_of_region(std::string_view what);

// Reads whole regions of the pattern by a kernel that sums them up. Thread: the GPU's.
class RegionReader {
 public:
  static Result<RegionReader> create(Context& context);
  // Computes what read() has to find in the region: else its first call does.
  void expect(const Region& region);
  // Seconds from the first acquire to the end of the last kernel.
  Result<double> read(const Region& region);
  // Of the last read(): of acquire, launch and release of one chunk.
  double longest_call_s() const { return longest_call_s_; }
  const Stream& stream() const { return stream_; }
  const std::string& mismatch() const { return mismatch_; }  // the first that read() found

 private:
  RegionReader(Context& context, Stream stream, ResultWords sum)
      : context_(&context), stream_(std::move(stream)), sum_(std::move(sum)) {}

  Context* context_;
  Stream stream_;
  ResultWords sum_;
  std::string mismatch_;
  double longest_call_s_ = 0;
  std::uint64_t words_ = 0, expected_ = 0;  // of the region that was read last
};

}  // namespace vmem::bench
