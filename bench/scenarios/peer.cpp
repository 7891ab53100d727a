// peer: pages beyond HBM lie in another GPU's HBM. First streams against bare copies between the
// two GPUs. Then kernels read a working set of 1.8 times HBM, pass after pass, against everything
// in HBM, or against the link if that is slower: the pages that do not fit cross it in each pass.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "bench/peer_limit.hpp"
#include "bench/scenarios/streaming.hpp"
#include "runtime/options/options.hpp"

namespace vmem::bench {
namespace {

constexpr double kStreamRatio = 4;
constexpr double kReadRatio = 1.8;
constexpr Goal kStreamGoal{Goal::Bound::at_least, 0.95, true};
constexpr Goal kReadGoal{Goal::Bound::at_least, 0.90, true};

// With the runtime's default, as much as the working set, pages would lie there and not on a peer.
constexpr std::uint64_t kHostBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kHostBytesEmulated = std::uint64_t{64} << 20;

// The devices that --peers names, else the first whose memory this one can access.
Result<std::vector<int>> choose_peers(const Context& context) {
  VMEM_ASSIGN(const Options options, options_named(context.settings, {"peers"}));
  const auto socket = std::ranges::find_if(options.peers, [](const auto& each) { return !each.socket.empty(); });
  if (socket != options.peers.end()) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("the peer scenario measures GPUs of this process, and --peers names {}; name GPUs, or use "
                            "the stream scenario",
                            socket->socket));
  }
  if (!options.peers.empty()) return lending_devices(context.gpu, options.peers);
  int count = 0;
  CUdevice own = 0;
  BENCH_CALL(context.gpu, cuDeviceGetCount, &count);
  BENCH_CALL(context.gpu, cuDeviceGet, &own, context.gpu.ordinal());
  for (int each = 0; each < count; ++each) {
    CUdevice other = 0;
    int can = 0;
    BENCH_CALL(context.gpu, cuDeviceGet, &other, each);
    if (other != own) BENCH_CALL(context.gpu, cuDeviceCanAccessPeer, &can, own, other);
    if (can != 0) return std::vector{each};
  }
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("the peer scenario needs a second GPU whose memory device {} can access, and of {} there is "
                          "none{}",
                          context.gpu.ordinal(), count,
                          context.gpu.emulated() ? "; VMEM_EMU=devices=2,h2d=2,d2h=2,duplex=4 emulates two" : ""));
}

// Half a second of the fastest link: sixteen passes over a working set of 16 GiB.
constexpr std::uint64_t kSampleBytes = std::uint64_t{256} << 30;

// Replaces what the flags and the environment say of peers.
void set_peers(Settings& settings, std::string value) {
  std::erase_if(settings.runtime_options, [](const auto& each) { return each.first == "peers"; });
  settings.runtime_options.emplace_back("peers", std::move(value));
}

// A lender without a size lends all that it has.
std::uint64_t lent_bytes(const std::vector<PeerSpec>& peers) {
  std::uint64_t bytes = 0;
  for (const PeerSpec& each : peers) bytes += each.bytes.value_or(std::uint64_t{1} << 50);
  return bytes;
}

// The settings with a peer that lends the size of the working set, so that each page may keep its
// slot there.
Result<Settings> with_peer(const Settings& given, int peer, std::uint64_t working_set_bytes, bool emulated) {
  Settings settings = given;
  VMEM_ASSIGN(const Options named, options_named(given, {"peers"}));
  if (named.peers.empty()) set_peers(settings, fmt::format("{}:{}", peer, working_set_bytes));
  if (!given.host_bytes && (named.peers.empty() || lent_bytes(named.peers) >= working_set_bytes))
    settings.host_bytes = emulated ? kHostBytesEmulated : kHostBytes;
  if (settings.passes == 0 && !emulated)
    settings.passes = int(std::max<std::uint64_t>(kSampleBytes / working_set_bytes, 1));
  return settings;
}

Status add_stream(Context& context, int peer, StreamMode mode, StreamLimit& limit, const Goal& goal) {
  VMEM_ASSIGN(Sizes sizes, plan_sizes(context.settings, context.gpu, kStreamRatio));
  VMEM_ASSIGN(const Settings settings,
              with_peer(context.settings, peer, sizes.working_set_bytes, context.gpu.emulated()));
  Context part = context.with(settings);
  VMEM_ASSIGN(sizes, plan_sizes(settings, context.gpu, kStreamRatio));
  VMEM_ASSIGN(const Streamed streamed, measure_stream(part, sizes, mode, limit));
  Record record = stream_record(part, sizes, mode, limit, streamed);
  record.scenario = "peer";
  record.goal = goal;
  context.records.push_back(std::move(record));
  return {};
}

Status add_reading(Context& context, int peer, StreamLimit& link) {
  Settings local = context.settings;
  local.ratio = kReadRatio;
  local.working_set_bytes.reset();
  VMEM_ASSIGN(Sizes sizes, plan_sizes(local, context.gpu, kReadRatio));
  VMEM_ASSIGN(const Settings lent, with_peer(local, peer, sizes.working_set_bytes, context.gpu.emulated()));
  VMEM_ASSIGN(sizes, plan_sizes(lent, context.gpu, kReadRatio));

  local.hbm_bytes = sizes.working_set_bytes;
  local.passes = lent.passes;
  local.ratio = 1;
  set_peers(local, "off");
  VMEM_ASSIGN(const Sizes local_sizes, plan_sizes(local, context.gpu, 1));
  Context all_local = context.with(local);
  VMEM_ASSIGN(const Streamed at_home, measure_stream(all_local, local_sizes, StreamMode::read_only, link));
  Context part = context.with(lent);
  VMEM_ASSIGN(const Streamed streamed, measure_stream(part, sizes, StreamMode::read_only, link));

  Record record = stream_record(part, sizes, StreamMode::read_only, link, streamed);
  const double local_rate = at_home.processed.median();
  const double missing = 1.0 - double(sizes.hbm_bytes) / double(sizes.working_set_bytes);
  const double link_rate = streamed.rates.limit.median() / missing;
  record.scenario = "peer";
  record.variant = fmt::format("kernels read {}", ratio_text(sizes.ratio));
  record.achieved = streamed.processed.median();
  record.details["achieved_spread"] = streamed.processed.spread();
  record.limit = std::min(local_rate, link_rate);
  record.limit_name = local_rate < link_rate
                          ? "the same with everything in HBM"
                          : fmt::format("{}, which {:.1f} % have to cross", record.limit_name, 100 * missing);
  const Samples& of_limit = local_rate < link_rate ? at_home.processed : streamed.rates.limit;
  record.details["limit_spread"] = of_limit.spread();
  record.details["limit_samples"] = of_limit.count();
  record.details.erase("limit_best");  // of bare copies, which are not this limit
  record.goal = kReadGoal;
  record.details["local_gb_per_s"] = local_rate;
  record.details["link_gb_per_s"] = streamed.rates.limit.median();
  record.details["missing_share"] = missing;
  if (record.verified) record.mismatch = at_home.mismatch;
  record.verified = record.mismatch.empty();
  context.records.push_back(std::move(record));
  return {};
}

}  // namespace

Status run_peer(Context& context) {
  VMEM_ASSIGN(const std::vector<int> peers, choose_peers(context));
  VMEM_ASSIGN(PeerLimit link, PeerLimit::create(context.gpu, peers));
  const int peer = peers.front();  // the only one if none is named
  if (context.settings.mode != "rw") VMEM_TRY(add_stream(context, peer, StreamMode::read_only, link, kStreamGoal));
  if (context.settings.mode != "ro") VMEM_TRY(add_stream(context, peer, StreamMode::read_write, link, kStreamGoal));
  if (context.settings.mode == "rw") return {};
  return add_reading(context, peer, link);
}

}  // namespace vmem::bench
