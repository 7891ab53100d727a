// Hostile calls of the whole C API from several threads, on small emulated machines over random
// chains of tiers, beside honest allocations whose bytes are verified. Every call must return in
// time, with a status that vmem.h allows and a message that names the arguments. At the end nothing
// may be left. A failure prints its seed.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "campaign/api_honest.hpp"
#include "campaign/api_hostile.hpp"
#include "campaign/seeds.hpp"
#include "rdma/process.hpp"

namespace vmem::test {
namespace {

using namespace std::chrono_literals;

#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSeeds = 40;
constexpr auto kSlack = 20s;
#else
constexpr std::uint64_t kSeeds = 120;
constexpr auto kSlack = 8s;  // for loaded machines
#endif
constexpr auto kMost = std::chrono::milliseconds(ApiPlan::kCallWaitMs) + kSlack;

#define ASSERT_OK(call) ASSERT_EQ(call, VMEM_OK) << vmem_last_error()

// A file to map; exists while the program runs.
const std::string& mapped_file() {
  static const std::string path = [] {
    std::string name = std::filesystem::current_path() / fmt::format("api-fuzz-{}", ::getpid());
    std::ofstream(name) << std::string(kFileBytes, 'v');
    static const auto remove = [](const std::string* file) { std::filesystem::remove(*file); };
    static const std::unique_ptr<const std::string, decltype(remove)> owner(new std::string(name), remove);
    return name;
  }();
  return path;
}

// A lending node that runs as long as the program. "": this build has no daemon.
std::string lending_node() {
  static std::unique_ptr<rdma::Process> daemon;
  static const std::string address = [] {
    const auto program = std::filesystem::canonical("/proc/self/exe").parent_path() / "vmem";
    if (!std::filesystem::exists(program)) return std::string();
    daemon = std::make_unique<rdma::Process>(
        std::vector<std::string>{program, "daemon", "--listen", "127.0.0.1:0", "--lend", "128MiB", "--log", "off"});
    const std::string line = daemon->first_line();
    const auto at = line.find("listens on ");
    return at == std::string::npos ? "" : line.substr(at + 11, line.find(' ', at + 11) - at - 11);
  }();
  return address;
}

// Periodically checks all callers for hanging calls.
class HangGuard {
 public:
  HangGuard()
      : thread_([](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            Caller::end_if_hanging(4 * std::chrono::duration_cast<std::chrono::seconds>(kMost));
            std::this_thread::sleep_for(100ms);
          }
        }) {}

 private:
  std::jthread thread_;
};

class ApiRun {
 public:
  explicit ApiRun(std::uint64_t seed)
      : plan_(seed, lending_node()), gpu_(plan_.machine()), random_(seed), call_(verdict_, "main", kMost) {}
  // Shuts down even after a failure, so that the next test finds a clean machine.
  ~ApiRun() { (void)vmem_shutdown(); }

  void run() {
    std::printf("  %s\n", plan_.words().c_str());
    std::fflush(stdout);
    Hostile::expect_refused_everywhere(call_, {ApiPlan::kBase, 1}, VMEM_ERROR_NOT_INITIALIZED);
    start();
    if (::testing::Test::HasFatalFailure()) return;
    run_threads();
    ASSERT_FALSE(verdict_.failed()) << verdict_.words() << trace_;
    if (!plan_.ends_full) free_victims();
    refuse_shutdown_while_held();
    call_("shutdown", any_of(VMEM_OK), {}, [] { return vmem_shutdown(); });
    Hostile::expect_refused_everywhere(call_, world_.any_target(random_), VMEM_ERROR_NOT_INITIALIZED);
    ASSERT_FALSE(verdict_.failed()) << verdict_.words() << call_.trace();
  }

 private:
  void start() {
    std::vector<vmem_option> options;
    const auto given = plan_.options();
    for (const auto& [name, value] : given) options.push_back({name.c_str(), value.c_str()});
    ASSERT_OK(vmem_init(options.data(), options.size()));
  }

  void run_threads() {
    std::barrier all(plan_.threads);
    std::vector<std::thread> threads;
    std::deque<std::string> traces(std::size_t(plan_.threads));
    for (int i = 0; i < plan_.threads; ++i) threads.emplace_back([&, i] { work(i, all, traces[std::size_t(i)]); });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& trace : traces) trace_ += trace;
  }

  void work(int number, std::barrier<>& all, std::string& trace) {
    const std::uint64_t seed = plan_.seed * 16 + std::uint64_t(number);
    Caller call(verdict_, fmt::format("thread {}", number), kMost);
    gpu_.make_current(0);
    CUstream stream = gpu_.create_stream(0);
    Honest honest(plan_, world_, verdict_, call, seed * 2, stream);
    Hostile hostile(plan_, world_, gpu_, call, seed * 2 + 1, mapped_file());
    Random random(seed);
    for (int i = 0; i < plan_.steps && !verdict_.failed(); ++i) {
      gpu_.make_current(0);
      plan_.wild || !random.one_in(3) ? hostile.step() : honest.step();
    }
    hostile.release_all();
    all.arrive_and_wait();
    gpu_.make_current(0);
    plan_.ends_full ? honest.verify_all() : honest.finish();
    (void)vmem_stream_close(stream);
    trace = call.trace();
  }

  void free_victims() {
    for (const Block& block : world_.victims()) {
      // If addresses are reused concurrently, a listed block may already be freed as another's.
      const Statuses allowed = any_of(VMEM_OK) | (plan_.wild ? any_of(VMEM_ERROR_INVALID_POINTER) : kNoStatus);
      call_(fmt::format("free({:#x}) at the end", block.base), allowed, {},
            [&] { return vmem_free(reinterpret_cast<void*>(block.base), nullptr); });
    }
    expect_nothing_left();
  }

  // Retries: the suballocator releases its cached blocks only when memory runs out and the work
  // that used them is known to be complete.
  vmem_statistics statistics_of_the_empty() {
    vmem_statistics stats{};
    stats.struct_bytes = sizeof stats;
    for (int tries = 0; tries < 500; ++tries) {
      void* never = nullptr;
      call_("malloc of more than there is", any_of(VMEM_ERROR_OUT_OF_MEMORY), {},
            [&] { return vmem_malloc(&never, ApiPlan::kSpaceBytes / 4 * 3, 0, nullptr); });
      call_("quiesce", any_of(VMEM_OK), {}, [] { return vmem_quiesce(); });
      call_("stats", any_of(VMEM_OK), {}, [&] { return vmem_stats(&stats); });
      if (stats.committed_bytes == 0 || verdict_.failed()) break;
      std::this_thread::sleep_for(10ms);
    }
    return stats;
  }

  void expect_nothing_left() {
    const vmem_statistics stats = statistics_of_the_empty();
    EXPECT_EQ(stats.allocated_bytes, 0u);
    EXPECT_EQ(stats.file_mapped_bytes, 0u);
    EXPECT_EQ(stats.committed_bytes, 0u);
    EXPECT_EQ(stats.pages, 0u);
    EXPECT_EQ(stats.hbm_used_bytes, 0u);
    EXPECT_EQ(stats.host_used_bytes, 0u);
    EXPECT_EQ(stats.peer_used_bytes, 0u);
    EXPECT_EQ(stats.nvme_used_bytes, 0u);
    EXPECT_EQ(stats.remote_used_bytes, 0u);
  }

  void refuse_shutdown_while_held() {
    void* memory = nullptr;
    // The blocks left for shutdown may fill the memory.
    if (vmem_malloc(&memory, 100, 0, nullptr) != VMEM_OK) return;
    const vmem_range range{memory, 100, VMEM_READ, 0};
    call_("acquire before shutdown", kServed, {}, [&] { return vmem_acquire(&range, 1, nullptr); });
    call_("shutdown while held", any_of(VMEM_ERROR_IN_USE), {}, [] { return vmem_shutdown(); });
    call_("release before shutdown", any_of(VMEM_OK), {}, [&] { return vmem_release(&range, 1, nullptr); });
  }

  const ApiPlan plan_;
  EmulatedGpu gpu_;
  Verdict verdict_;
  World world_;
  Random random_;
  Caller call_;
  std::string trace_;
};

class ApiFuzz : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(ApiFuzz, HostileCallsAreRefusedAndHonestBytesStay) {
  const HangGuard guard;
  run_seeds(GetParam(), kSeeds, [](std::uint64_t seed) {
    ApiRun(seed).run();
    if (HasFailure()) return;
    // The driver refuses while it holds any of our objects.
    ASSERT_EQ(configure_emulated("devices=1"), "") << "something is left in the driver";
  });
  std::printf("%llu calls\n", static_cast<unsigned long long>(Caller::calls()));
}

INSTANTIATE_TEST_SUITE_P(Seeds, ApiFuzz, ::testing::Range<std::uint64_t>(0, kShards));

}  // namespace
}  // namespace vmem::test
