// peer: what HBM has no room for lies in another GPU's HBM. First streamed, against bare copies between the two GPUs; then a working set of
// 1.8 times the HBM is read by kernels, pass after pass, against the same with everything in HBM, or against the link where that is the
// narrower one: what does not fit has to cross it in each pass.
#include <fmt/format.h>

#include <algorithm>

#include "base/options.hpp"
#include "bench/peer_limit.hpp"
#include "bench/scenarios/streaming.hpp"

namespace vmem::bench {
namespace {

constexpr double kStreamRatio = 4;
constexpr double kReadRatio = 1.8;
constexpr Goal kStreamGoal{Goal::Bound::at_least, 0.95, true};
constexpr Goal kReadGoal{Goal::Bound::at_least, 0.90, true};

// The one that --peers names first, else the first whose memory this one can access.
Result<int> choose_peer(const Context& context) {
  const auto& given = context.settings.runtime_options;
  const auto named = std::ranges::find(given, "peers", &std::pair<std::string, std::string>::first);
  if (named != given.end()) {
    VMEM_ASSIGN(const Options options, resolve_options({{*named}}));
    if (!options.peers.empty() && !options.peers.front().socket.empty()) {
      return fail(
          VMEM_ERROR_INVALID_OPTION,
          fmt::format("the peer scenario measures a GPU of this process, and --peers names {} first; name a GPU, "
                      "or use the stream scenario",
                      options.peers.front().socket));
    }
    if (!options.peers.empty()) return options.peers.front().device;
  }
  int count = 0;
  CUdevice own = 0;
  BENCH_CALL(context.gpu, cuDeviceGetCount, &count);
  BENCH_CALL(context.gpu, cuDeviceGet, &own, context.gpu.ordinal());
  for (int each = 0; each < count; ++each) {
    CUdevice other = 0;
    int can = 0;
    BENCH_CALL(context.gpu, cuDeviceGet, &other, each);
    if (other != own) BENCH_CALL(context.gpu, cuDeviceCanAccessPeer, &can, own, other);
    if (can != 0) return each;
  }
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("the peer scenario needs a second GPU whose memory device {} can access, and of {} there is "
                          "none{}",
                          context.gpu.ordinal(), count,
                          context.gpu.emulated() ? "; VMEM_EMU=devices=2,h2d=2,d2h=2,duplex=4 emulates two" : ""));
}

// Half a second of the fastest link: of 16 GiB working sets that is sixteen passes.
constexpr std::uint64_t kSampleBytes = std::uint64_t{256} << 30;

// As the settings, with as much of the peer's memory as the working set takes, so that each page may keep its place there.
Settings with_peer(const Settings& given, int peer, std::uint64_t working_set_bytes, bool emulated) {
  Settings settings = given;
  const auto named = std::ranges::find(settings.runtime_options, "peers", &std::pair<std::string, std::string>::first);
  if (named == settings.runtime_options.end())
    settings.runtime_options.emplace_back("peers", fmt::format("{}:{}", peer, working_set_bytes));
  if (settings.passes == 0 && !emulated)
    settings.passes = int(std::max<std::uint64_t>(kSampleBytes / working_set_bytes, 1));
  return settings;
}

Status add_stream(Context& context, int peer, StreamMode mode, StreamLimit& limit, const Goal& goal) {
  VMEM_ASSIGN(Sizes sizes, plan_sizes(context.settings, context.gpu, kStreamRatio));
  const Settings settings = with_peer(context.settings, peer, sizes.working_set_bytes, context.gpu.emulated());
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
  const Settings lent = with_peer(local, peer, sizes.working_set_bytes, context.gpu.emulated());
  VMEM_ASSIGN(sizes, plan_sizes(lent, context.gpu, kReadRatio));

  local.hbm_bytes = sizes.working_set_bytes;
  local.passes = lent.passes;
  local.ratio = 1;
  std::erase_if(local.runtime_options, [](const auto& each) { return each.first == "peers"; });
  VMEM_ASSIGN(const Sizes local_sizes, plan_sizes(local, context.gpu, 1));
  Context all_local = context.with(local);
  VMEM_ASSIGN(const Streamed at_home, measure_stream(all_local, local_sizes, StreamMode::read_only, link));
  Context part = context.with(lent);
  VMEM_ASSIGN(const Streamed streamed, measure_stream(part, sizes, StreamMode::read_only, link));

  Record record = stream_record(part, sizes, StreamMode::read_only, link, streamed);
  const double local_rate = at_home.rates.achieved.median();
  const double missing = 1.0 - double(sizes.hbm_bytes) / double(sizes.working_set_bytes);
  const double link_rate = streamed.rates.limit.median() / missing;
  record.scenario = "peer";
  record.variant = fmt::format("kernels read {}", ratio_text(sizes.ratio));
  record.limit = std::min(local_rate, link_rate);
  record.limit_name = local_rate < link_rate
                          ? "the same with everything in HBM"
                          : fmt::format("{}, which {:.1f} % have to cross", record.limit_name, 100 * missing);
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
  VMEM_ASSIGN(const int peer, choose_peer(context));
  VMEM_ASSIGN(PeerLimit link, PeerLimit::create(context.gpu, peer));
  if (context.settings.mode != "rw") VMEM_TRY(add_stream(context, peer, StreamMode::read_only, link, kStreamGoal));
  if (context.settings.mode != "ro") VMEM_TRY(add_stream(context, peer, StreamMode::read_write, link, kStreamGoal));
  if (context.settings.mode == "rw") return {};
  return add_reading(context, peer, link);
}

}  // namespace vmem::bench
