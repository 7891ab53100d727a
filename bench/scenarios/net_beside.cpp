#include "bench/scenarios/net_beside.hpp"

#include <fmt/format.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "base/sizes.hpp"
#include "bench/bare_network.hpp"
#include "bench/remote_pages.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kPage = 2 * kMiB;
constexpr std::uint64_t kFewPages = 16;   // of the borrower whose loads are timed
constexpr std::uint64_t kManyPages = 64;  // of the other one
constexpr std::uint64_t kLimitBytes = 1024 * kMiB, kLimitBytesOnce = 64 * kMiB;
constexpr int kLoads = 2000, kLoadsOnce = 50;
constexpr double kOfIdle = 1.3;
constexpr Goal kGoal{Goal::Bound::at_most, 1.0, true, Goal::Needs::host};

// One borrower with its own node, connection and lease.
struct Borrower {
  PageMemory from, to;
  std::unique_ptr<RemotePages> tier;
};

Result<Borrower> borrow(Options options, std::uint64_t pages, std::uint64_t seed) {
  options.borrow_bytes = pages * kPage;
  VMEM_ASSIGN(PageMemory from, PageMemory::create(kPage, pages));
  VMEM_ASSIGN(PageMemory to, PageMemory::create(kPage, pages));
  from.fill(seed);
  VMEM_ASSIGN(auto tier, RemotePages::create(options, kPage, pages));
  VMEM_TRY(tier->store(from));
  return Borrower{std::move(from), std::move(to), std::move(tier)};
}

// Loads all pages of a borrower again and again, from its start to its end.
class Saturation {
 public:
  explicit Saturation(Borrower& borrower) : borrower_(borrower), thread_([this] { run(); }) {}
  ~Saturation() {
    ending_ = true;
    thread_.join();
  }
  void wait_until_busy() const {
    while (passes_ < 2 && !failed_) std::this_thread::yield();
  }
  std::uint64_t passes() const { return passes_; }
  bool failed() const { return failed_; }

 private:
  void run() {
    while (!ending_ && !failed_) {
      failed_ = !borrower_.tier->load(borrower_.to);
      ++passes_;
    }
  }

  Borrower& borrower_;
  std::atomic<bool> ending_ = false, failed_ = false;
  std::atomic<std::uint64_t> passes_ = 0;
  std::thread thread_;
};

// Microseconds of single loads, one after the other.
Result<Samples> time_loads(const Borrower& borrower, int loads) {
  Samples samples;
  for (int i = 0; i < loads; ++i) {
    const Stopwatch watch;
    VMEM_TRY(borrower.tier->load_one(borrower.to, static_cast<std::uint64_t>(i) % borrower.to.count()));
    samples.add(watch.seconds() * 1e6);
  }
  return samples;
}

}  // namespace

std::uint64_t net_beside_bytes() { return (kFewPages + kManyPages) * kPage; }

Status measure_net_beside(Context& context, const Options& options) {
  const bool once = context.settings.passes == 1;
  const int loads = once ? kLoadsOnce : kLoads;
  context.progress.begin("net one page beside another borrower", 3);
  const NodePath path = node_paths(options).front();
  VMEM_ASSIGN(const auto bare, BareNetwork::create(path, kPage));
  VMEM_ASSIGN(const double rate, bare->one_way(once ? kLimitBytesOnce : kLimitBytes));
  VMEM_ASSIGN(Borrower one, borrow(options, kFewPages, context.settings.seed));
  VMEM_ASSIGN(Borrower other, borrow(options, kManyPages, context.settings.seed + 1));
  context.progress.advance();
  VMEM_ASSIGN(const Samples idle, time_loads(one, loads));
  context.progress.advance();
  std::optional<Samples> busy;
  double other_rate = 0;
  {
    Saturation saturation(other);
    saturation.wait_until_busy();
    const std::uint64_t before = saturation.passes();
    const Stopwatch watch;
    VMEM_ASSIGN(busy, time_loads(one, loads));
    other_rate = double((saturation.passes() - before) * other.to.bytes()) / watch.nanoseconds();
    if (saturation.failed()) return fail(VMEM_ERROR_DRIVER, "the other borrower's loads failed");
  }
  const double page_us = double(kPage) / rate / 1e3;
  Record record;
  record.scenario = "net";
  record.variant = fmt::format("one page of {}, beside another borrower", format_bytes(kPage));
  record.options = {{"page_bytes", kPage},
                    {"node", one.tier->describe()},
                    {"channels", path.connections},
                    {"loads", loads},
                    {"other_pages", kManyPages}};
  record.unit = "us";
  record.limit_name = fmt::format("{} x p99 alone + one page at the rate of {}", kOfIdle, bare->name());
  record.limit_is = Record::LimitIs::reference;
  record.limit = kOfIdle * idle.quantile(0.99) + page_us;
  record.achieved = busy->quantile(0.99);
  record.goal = kGoal;
  record.details = {{"idle_p50_us", idle.median()},    {"idle_p99_us", idle.quantile(0.99)},
                    {"beside_p50_us", busy->median()}, {"beside_p99_us", busy->quantile(0.99)},
                    {"bare_gb_per_s", rate},           {"other_gb_per_s", other_rate}};
  record.mismatch = difference(one.from, one.to);
  record.verified = record.mismatch.empty();
  context.records.push_back(std::move(record));
  context.show_rows();
  return {};
}

}  // namespace vmem::bench
