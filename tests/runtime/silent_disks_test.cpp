// A file system that accepts requests and never answers, under the public API. Calls end with
// TIMEOUT and name it; pages are kept, and intact once it answers. Shutdown does not wait for it.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>

#include "campaign/seeds.hpp"
#include "runtime/runtime_fixture.hpp"
#include "runtime/silent_file_system.hpp"
#include "runtime/watched_pages.hpp"

namespace vmem::test {
namespace {

using std::chrono::steady_clock;
using ::testing::HasSubstr;

constexpr std::size_t kPage = WatchedPages::kPage;
constexpr std::size_t kPages = 48;  // 96 MiB, of which 64 fit above the disk
// Long enough for calls on a slow machine.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr auto kCallWait = std::chrono::seconds(4);
#else
constexpr auto kCallWait = std::chrono::seconds(2);
#endif
constexpr auto kSilence = kCallWait + std::chrono::seconds(3);
constexpr auto kMost = kCallWait + std::chrono::seconds(1);
const std::string kCallWaitOption = fmt::format("{}s", kCallWait.count());
constexpr const char* kMachine = "devices=1,hbm=64MiB,host=256MiB";

vmem_status start_on(std::vector<vmem_option> more) {
  more.insert(more.end(), {{"hbm", "32MiB"},
                           {"host", "32MiB"},
                           {"page", "2MiB"},
                           {"devices", "0"},
                           {"compress", "off"},
                           {"call_wait", kCallWaitOption.c_str()}});
  return start_vmem(std::move(more));
}

std::string nvme_in(const std::string& path) { return path + ":128MiB"; }

// Word i is i.
void write_file(const std::string& path, std::size_t bytes) {
  std::vector<std::uint64_t> words(bytes / sizeof(std::uint64_t));
  std::iota(words.begin(), words.end(), 0);
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(words.data()), std::streamsize(bytes));
}

template <class Call>
steady_clock::duration time_of(Call call) {
  const auto begun = steady_clock::now();
  call();
  return steady_clock::now() - begun;
}

class SilentDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    if (disk.why_not()) GTEST_SKIP() << *disk.why_not();
    gpu.emplace(kMachine);
    RecordProperty("seed", std::to_string(seed));
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  }
  void TearDown() override {
    if (disk.why_not()) return;
    disk.answer_again();
    vmem_shutdown();
    gpu.reset();
  }
  // Allocates pages and writes each once.
  WatchedPages& allocate(std::size_t count, const std::string& named) {
    void* memory = nullptr;
    EXPECT_OK(vmem_malloc(&memory, count * kPage, 0, nullptr));
    base = static_cast<std::byte*>(memory);
    pages.emplace(config_for(base, count, named));
    for (std::size_t page = 0; page < count; ++page) EXPECT_OK(pages->write(page));
    return *pages;
  }
  WatchedPages::Config config_for(std::byte* memory, std::size_t count, const std::string& named) {
    return {.gpu = &*gpu,
            .base = memory,
            .pages = count,
            .longest = kMost,
            .refusable = [named](vmem_status status, const std::string& message) {
              return status == VMEM_ERROR_TIMEOUT && message.find(named) != std::string::npos;
            }};
  }
  // Makes each kind of call from two threads until every kind but prefetch was refused, or for
  // `longest`.
  void use(WatchedPages& used, std::size_t count, std::chrono::seconds longest) {
    const auto end = steady_clock::now() + longest;
    const auto use_from = [&](std::uint64_t number) {
      gpu->make_current(0);
      std::mt19937_64 random(seed + number);
      CUstream const stream = streams[number];
      for (std::size_t i = 0; steady_clock::now() < end && !HasFailure(); ++i)
        (void)used.make(WatchedPages::kCalls[i % std::size(WatchedPages::kCalls)], random() % count, stream, random);
    };
    std::thread other(use_from, 1);
    use_from(0);
    other.join();
  }
  // Retries, since requests that waited for the disk may take longer than one call waits.
  void quiesce() {
    const auto end = steady_clock::now() + std::chrono::seconds(60);
    vmem_status status = vmem_quiesce();
    while (status == VMEM_ERROR_TIMEOUT && steady_clock::now() < end) status = vmem_quiesce();
    EXPECT_OK(status);
  }
  void read_all(WatchedPages& used, std::size_t count) {
    for (std::size_t page = 0; page < count && !HasFailure(); ++page) EXPECT_OK(used.read(page, nullptr));
  }

  const std::uint64_t seed = test::printed_seed();
  SilentFileSystem disk;
  std::optional<EmulatedGpu> gpu;
  CUstream streams[2] = {};
  std::byte* base = nullptr;
  std::optional<WatchedPages> pages;
};

TEST_F(SilentDisk, CallsEndWithTimeoutAndThePagesAreRightWhenItAnswersAgain) {
  ASSERT_OK(start_on({{"nvme", nvme_in(disk.path()).c_str()}}));
  for (CUstream& stream : streams) stream = gpu->create_stream(0);
  allocate(kPages, disk.path());
  use(*pages, kPages, std::chrono::seconds(1));
  EXPECT_EQ(pages->refused(), 0u) << pages->last_error();
  for (int silence = 0; silence < 2 && !HasFailure(); ++silence) {
    disk.go_silent();
    use(*pages, kPages, kSilence);
    EXPECT_GT(pages->refused(), 0u);
    EXPECT_EQ(vmem_quiesce(), VMEM_ERROR_TIMEOUT);
    EXPECT_THAT(vmem_last_error(), HasSubstr(disk.path()));
    disk.answer_again();
    quiesce();
    read_all(*pages, kPages);
  }
  std::printf("%llu calls refused, longest %lld ms\n  %s\n", static_cast<unsigned long long>(pages->refused()),
              static_cast<long long>(pages->longest().count()), pages->last_error().c_str());
  EXPECT_OK(vmem_free(base, nullptr));
  EXPECT_OK(vmem_shutdown());
}

TEST_F(SilentDisk, AMappedFileTimesOutAndIsRightWhenItAnswersAgain) {
  constexpr std::size_t kFilePages = 40;
  const std::string path = disk.path() + "/weights";
  write_file(path, kFilePages * kPage);
  ASSERT_OK(start_on({}));
  for (CUstream& stream : streams) stream = gpu->create_stream(0);
  void *mapped = nullptr, *target = nullptr;
  ASSERT_OK(vmem_map_file(&mapped, path.c_str(), 0, 0, 0));
  ASSERT_OK(vmem_malloc(&target, kPage, 0, nullptr));
  WatchedPages::Config config = config_for(static_cast<std::byte*>(mapped), kFilePages, path);
  config.copies_to = static_cast<std::byte*>(target);
  WatchedPages file(std::move(config));
  for (std::size_t page = 0; page < kFilePages; ++page) file.know(page, page * kPage / sizeof(std::uint64_t));
  use(file, kFilePages, std::chrono::seconds(1));
  EXPECT_EQ(file.refused(), 0u) << file.last_error();
  disk.go_silent();
  use(file, kFilePages, kSilence);
  EXPECT_GT(file.refused(), 0u);
  disk.answer_again();
  read_all(file, kFilePages);
  EXPECT_OK(vmem_free(mapped, nullptr));
  EXPECT_OK(vmem_free(target, nullptr));
  EXPECT_OK(vmem_shutdown());
}

TEST_F(SilentDisk, MapFileEndsWithTimeoutAndNamesTheFile) {
  const std::string path = disk.path() + "/weights";
  write_file(path, 4 * kPage);
  ASSERT_OK(start_on({}));
  disk.go_silent();
  void* mapped = nullptr;
  EXPECT_LT(time_of([&] {
              EXPECT_REFUSED(vmem_map_file(&mapped, path.c_str(), 0, 0, 0), VMEM_ERROR_TIMEOUT, {path, "call_wait"});
            }),
            kMost);
  EXPECT_EQ(mapped, nullptr);
  disk.answer_again();
  ASSERT_OK(vmem_map_file(&mapped, path.c_str(), 0, 0, 0));
  std::vector<std::uint64_t> words(kPage / sizeof(std::uint64_t));
  EXPECT_OK(vmem_read(words.data(), static_cast<std::byte*>(mapped) + kPage, kPage));
  EXPECT_EQ(words.front(), words.size());
  EXPECT_OK(vmem_free(mapped, nullptr));
  EXPECT_OK(vmem_shutdown());
}

// Closing a file can take as long as opening it, and the mover ends a mapping.
TEST_F(SilentDisk, FreeingAMappedFileHoldsUpNobody) {
  const std::string path = disk.path() + "/weights";
  write_file(path, 4 * kPage);
  ASSERT_OK(start_on({}));
  void* mapped = nullptr;
  ASSERT_OK(vmem_map_file(&mapped, path.c_str(), 0, 0, 0));
  disk.go_silent();
  EXPECT_LT(time_of([&] { EXPECT_OK(vmem_free(mapped, nullptr)); }), kCallWait);
  EXPECT_LT(time_of([&] { allocate(8, "nothing"); }), kCallWait);
  EXPECT_OK(vmem_free(base, nullptr));
  EXPECT_LT(time_of([&] { EXPECT_OK(vmem_shutdown()); }), kMost);
}

TEST_F(SilentDisk, TheStartEndsWithTimeoutAndNamesTheDirectory) {
  const std::string nvme = nvme_in(disk.path());
  disk.go_silent();
  EXPECT_LT(time_of([&] {
              EXPECT_REFUSED(start_on({{"nvme", nvme.c_str()}}), VMEM_ERROR_TIMEOUT, {disk.path(), "call_wait"});
            }),
            kMost);
  disk.answer_again();
  EXPECT_OK(start_on({{"nvme", nvme.c_str()}}));
  EXPECT_OK(vmem_shutdown());
}

TEST_F(SilentDisk, ShutdownWithoutRequestsDoesNotWaitLongerThanACall) {
  ASSERT_OK(start_on({{"nvme", nvme_in(disk.path()).c_str()}}));
  allocate(kPages, disk.path());
  ASSERT_OK(vmem_quiesce());
  disk.go_silent();
  EXPECT_LT(time_of([&] { EXPECT_OK(vmem_free(base, nullptr)); }), kMost);
  EXPECT_LT(time_of([&] { EXPECT_OK(vmem_shutdown()); }), kMost);
}

// A daemon lends files on the silent disk.
TEST_F(SilentDisk, ADaemonAndItsBorrowerStayUsable) {
  const auto tool = std::filesystem::canonical("/proc/self/exe").parent_path() / "vmem";
  if (!std::filesystem::exists(tool)) GTEST_SKIP() << "built without tools";
  rdma::Process daemon(
      {tool.string(), "daemon", "--listen", "127.0.0.1:0", "--lend", "16MiB", "--nvme", nvme_in(disk.path())});
  const std::string line = daemon.first_line();
  const auto at = line.find("listens on ");
  ASSERT_NE(at, std::string::npos) << line;
  const std::string address = line.substr(at + 11, line.find(' ', at + 11) - at - 11);
  ASSERT_OK(start_on({{"remote", address.c_str()}}));
  for (CUstream& stream : streams) stream = gpu->create_stream(0);
  allocate(kPages, address);
  disk.go_silent();
  use(*pages, kPages, kSilence);
  EXPECT_GT(pages->refused(), 0u);
  daemon.signal(SIGUSR1);
  EXPECT_TRUE(daemon.says("vmem daemon: 1 node borrows")) << daemon.said().back();
  disk.answer_again();
  read_all(*pages, kPages);
  EXPECT_OK(vmem_free(base, nullptr));
  EXPECT_OK(vmem_shutdown());
  daemon.signal(SIGTERM);
  EXPECT_EQ(daemon.wait(), 0);
}

TEST_F(SilentDisk, AServerThatDiesTakesItsDirectoryOutOfService) {
  ASSERT_OK(start_on({{"nvme", nvme_in(disk.path()).c_str()}}));
  allocate(kPages, disk.path());
  disk.go_silent();
  (void)vmem_prefetch(base, kPages * kPage);  // requests that wait for the disk's answer
  disk.die();
  const std::vector<std::uint64_t> words(kPage / sizeof(std::uint64_t));
  for (std::size_t page = 0; page < kPages && statistics().nvme_budget_bytes != 0; ++page)
    EXPECT_LT(time_of([&] { (void)vmem_write(base + page * kPage, words.data(), kPage); }), kMost);
  EXPECT_EQ(statistics().nvme_budget_bytes, 0u) << vmem_last_error();
  EXPECT_OK(vmem_free(base, nullptr));
  EXPECT_OK(vmem_shutdown());
}

// ---- a program that ends on a file system that does not answer ----

void wait_for_signal() {
  sigset_t awaited;
  ::sigemptyset(&awaited);
  ::sigaddset(&awaited, SIGUSR1);
  int which = 0;
  (void)::sigwait(&awaited, &which);
}

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

// Where a program's pages are: in files of the option nvme, or in a mapped file whose pages load
// straight to HBM.
constexpr const char* kNvme = "nvme";
constexpr const char* kStraightToHbm = "straight-to-hbm";

void* memory_below(const std::string& where, const std::string& folder) {
  void* memory = nullptr;
  if (where == kStraightToHbm) {
    const bool mapped = start_on({{"gds", "on"}}) == VMEM_OK &&
                        vmem_map_file(&memory, (folder + "/weights").c_str(), 0, 0, 0) == VMEM_OK;
    return mapped ? memory : nullptr;
  }
  const std::string nvme = nvme_in(folder);
  if (start_on({{"nvme", nvme.c_str()}}) != VMEM_OK || vmem_malloc(&memory, kPages * kPage, 0, nullptr) != VMEM_OK)
    return nullptr;
  const std::vector<std::byte> page(kPage, std::byte{3});
  for (std::size_t i = 0; i < kPages; ++i)
    (void)vmem_write(static_cast<std::byte*>(memory) + i * kPage, page.data(), page.size());
  return memory;
}

// Uses pages until a call fails for lack of an answer, and prints its status.
void use_until_refused(std::byte* memory) {
  for (std::size_t i = 0; i < 4 * kPages; ++i) {
    const vmem_range range = range_of(memory + i % kPages * kPage, kPage, VMEM_READ);
    const vmem_status status = vmem_acquire(&range, 1, nullptr);
    if (status == VMEM_OK) {
      (void)vmem_release(&range, 1, nullptr);
      continue;
    }
    return say(fmt::format("refused {}: {}", vmem_status_string(status), vmem_last_error()));
  }
  say("nothing was refused");
}

// True if memory mapped after vmem's end stays unchanged: no late request writes to it.
bool new_memory_stays_as_it_is() {
  constexpr std::size_t kBytes = 256 * kMiB;
  auto* const memory =
      static_cast<unsigned char*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::fill_n(memory, kBytes, 0x5a);
  say("filled");
  wait_for_signal();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  return std::all_of(memory, memory + kBytes, [](unsigned char each) { return each == 0x5a; });
}

int end_in_silence(const std::string& where, const std::string& folder) {
  sigset_t awaited;
  ::sigemptyset(&awaited);
  ::sigaddset(&awaited, SIGUSR1);
  (void)::pthread_sigmask(SIG_BLOCK, &awaited, nullptr);
  new EmulatedGpu(std::string(kMachine) + ",cufile=direct");  // leaked: requests in flight use it
  void* const memory = memory_below(where, folder);
  if (memory == nullptr) {
    say(vmem_last_error());
    return 1;
  }
  say("ready");
  wait_for_signal();
  use_until_refused(static_cast<std::byte*>(memory));
  say(fmt::format("quiesce {}", vmem_status_string(vmem_quiesce())));
  vmem_status ended = VMEM_OK;
  const auto took = time_of([&] { ended = vmem_shutdown(); });
  say(fmt::format("shutdown {}, {}", vmem_status_string(ended), took < 2 * kMost ? "in time" : "too late"));
  say(new_memory_stays_as_it_is() ? "intact" : "written to");
  return 0;
}

class SilentEnd : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (disk.why_not()) GTEST_SKIP() << *disk.why_not();
    const std::string self = std::filesystem::canonical("/proc/self/exe").string();
    write_file(disk.path() + "/weights", kPages * kPage);
    // Memory left to the kernel is an intended leak, threads included.
    program.emplace(std::vector<std::string>{"env", "ASAN_OPTIONS=detect_leaks=0", "TSAN_OPTIONS=report_thread_leaks=0",
                                             self, "--end-in-silence", GetParam(), disk.path()});
    ASSERT_TRUE(program->says("ready")) << program->said().back();
    disk.go_silent();
    program->signal(SIGUSR1);
    ASSERT_TRUE(program->says("refused timeout"));
    EXPECT_THAT(program->said(),
                ::testing::Contains(::testing::AllOf(::testing::StartsWith("refused"), HasSubstr(disk.path()))));
    EXPECT_TRUE(program->says("quiesce timeout"));
    EXPECT_TRUE(program->says("shutdown ok, in time")) << program->said().back();
    ASSERT_TRUE(program->says("filled"));
  }
  SilentFileSystem disk;
  std::optional<rdma::Process> program;
};

TEST_P(SilentEnd, MemoryOfRequestsIsNobodyElsesBeforeTheyEnd) {
  disk.answer_again();
  program->signal(SIGUSR1);
  EXPECT_TRUE(program->says("intact")) << program->said().back();
  EXPECT_EQ(program->wait(), 0);
}

// The kernel keeps the process until it aborts the requests.
TEST_P(SilentEnd, TheProcessEndsWithoutHarmThoughNothingEverAnswers) {
  program->signal(SIGUSR1);
  EXPECT_TRUE(program->says("intact")) << program->said().back();
  disk.die();
  EXPECT_EQ(program->wait(), 0);
}

INSTANTIATE_TEST_SUITE_P(Pages, SilentEnd, ::testing::Values(kNvme, kStraightToHbm),
                         [](const auto& each) { return each.param == kNvme ? "OnDisk" : "OnTheirWayToHbm"; });

}  // namespace
}  // namespace vmem::test

int main(int count, char** words) {
  if (count == 4 && std::string(words[1]) == "--end-in-silence") return vmem::test::end_in_silence(words[2], words[3]);
  ::testing::InitGoogleTest(&count, words);
  return RUN_ALL_TESTS();
}
