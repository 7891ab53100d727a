#include "tiers/io/thread_queue.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <numeric>
#include <set>
#include <thread>

#include "tiers/forbidden_calls.hpp"

namespace vmem::tiers {
namespace {

using std::chrono::seconds;

class TemporaryFile {
 public:
  TemporaryFile() : descriptor_(::open(::testing::TempDir().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)) {}
  ~TemporaryFile() { ::close(descriptor_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// Returns the result of one request; expects no other results.
std::int64_t carry_out(IoQueue& queue, const Io& io) {
  queue.push(io);
  std::vector<IoResult> ended;
  while (ended.empty()) {
    if (!queue.wait(ended, seconds(1))) return -EIO;
  }
  return ended.size() == 1 && ended[0].tag == io.tag ? ended[0].result : -EIO;
}

// Writes a head and a rest, and reads both back. Returns the error, or an empty string.
std::string round_trip(IoQueue& queue) {
  std::array<std::byte, 4096> head{}, back_head{};
  std::array<std::byte, 8192> rest{}, back_rest{};
  head.fill(std::byte{1});
  rest.fill(std::byte{2});
  Io io{.kind = Io::Kind::write, .file = 0, .offset = 4096, .memory = rest.data(), .bytes = 12288, .tag = 7};
  io.head = head.data();
  io.head_bytes = std::uint32_t(head.size());
  if (carry_out(queue, io) != 12288) return "the write is not whole";
  io = {.kind = Io::Kind::read, .file = 0, .offset = 4096, .memory = back_rest.data(), .bytes = 12288, .tag = 8};
  io.head = back_head.data();
  io.head_bytes = std::uint32_t(back_head.size());
  if (carry_out(queue, io) != 12288) return "the read is not whole";
  if (back_head != head || back_rest != rest) return "other bytes came back";
  io = {.kind = Io::Kind::read, .file = 0, .offset = 12288, .memory = back_rest.data(), .bytes = 8192, .tag = 9};
  return carry_out(queue, io) == 4096 ? "" : "the end of the file is not where it ends";
}

TEST(ThreadQueue, MovesHeadsAndWhatFollows) {
  const TemporaryFile file;
  ASSERT_GE(file.get(), 0);
  EXPECT_EQ(round_trip(*make_thread_queue({.files = {file.get()}})), "");
}

TEST(ThreadQueue, IoUringMovesTheSame) {
  const TemporaryFile file;
  auto queue = make_uring_queue({.files = {file.get()}});
  if (!queue) GTEST_SKIP() << queue.error().message;
  EXPECT_EQ(round_trip(**queue), "");
}

TEST(ThreadQueue, APolledIoUringMovesTheSameAndIsWoken) {
  const TemporaryFile file;
  Result<std::unique_ptr<IoQueue>> queue;
  // The queue outlives the thread that makes it.
  std::thread([&] { queue = make_uring_queue({.files = {file.get()}, .depth = 1, .poll = true}); }).join();
  if (!queue) GTEST_SKIP() << queue.error().message;
  EXPECT_EQ(round_trip(**queue), "");
  (*queue)->wake();
  std::vector<IoResult> ended;
  EXPECT_TRUE((*queue)->wait(ended, std::chrono::hours(1)));
  EXPECT_TRUE(ended.empty());
}

TEST(ThreadQueue, AsManyAsItsDepthAreAllAnswered) {
  const TemporaryFile file;
  const auto queue = make_thread_queue({.files = {file.get()}});
  std::vector<std::byte> memory(queue->depth() * 4096);
  for (std::uint32_t tag = 0; tag < queue->depth(); ++tag) {
    queue->push({.kind = Io::Kind::write,
                 .file = 0,
                 .offset = tag * 4096ull,
                 .memory = memory.data() + tag * 4096ull,
                 .bytes = 4096,
                 .tag = tag});
  }
  std::vector<IoResult> ended;
  while (ended.size() < queue->depth()) ASSERT_TRUE(queue->wait(ended, seconds(1)));
  std::set<std::uint64_t> tags;
  for (const IoResult& each : ended) {
    EXPECT_EQ(each.result, 4096);
    tags.insert(each.tag);
  }
  EXPECT_EQ(tags.size(), queue->depth());
}

TEST(ThreadQueue, AWakeBeforeAWaitEndsIt) {
  const auto queue = make_thread_queue({});
  queue->wake();
  std::vector<IoResult> ended;
  EXPECT_TRUE(queue->wait(ended, std::chrono::hours(1)));
  EXPECT_TRUE(ended.empty());
}

TEST(ThreadQueue, AnErrorIsSaid) {
  const auto queue = make_thread_queue({});
  std::array<std::byte, 512> memory{};
  EXPECT_EQ(
      carry_out(
          *queue,
          {.kind = Io::Kind::read, .file = 999'999, .offset = 0, .memory = memory.data(), .bytes = 512, .tag = 1}),
      -EBADF);
}

[[noreturn]] void use_a_queue_without_io_uring() {
  if (!forbid(__NR_io_uring_setup)) std::exit(3);
  const TemporaryFile file;
  const auto queue = make_io_queue({.files = {file.get()}});
  if (!queue || (*queue)->describe() != "16 threads (no io_uring)") std::exit(1);
  std::exit(round_trip(**queue).empty() ? 0 : 2);
}

TEST(ThreadQueueDeathTest, TakesOverWhereIoUringIsForbidden) {
  EXPECT_EXIT(use_a_queue_without_io_uring(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace vmem::tiers
