// Requirements specific to UCX, beyond those on every Transport.
#include "rdma/transport/ucx/ucx.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "rdma/transport/progress_thread.hpp"
#include "rdma/transport/ucx/ucx_exchange.hpp"
#include "rdma/transport/ucx/ucx_handles.hpp"
#include "rdma/transport/ucx/ucx_memory_types.hpp"
#include "rdma/transport/ucx_pair.hpp"

namespace vmem::rdma {
namespace {

using ::testing::HasSubstr;

TEST(Ucx, LanesAreReadFromItsWords) {
  EXPECT_EQ(
      lanes_of(
          "#                 lane[0]:  0:tcp/lo.0 md[0]                -> md[0]/tcp/sysdev[255] am am_bw#0 wireup\n"),
      "tcp/lo");
  EXPECT_EQ(lanes_of("# lane[0]:  7:rc_mlx5/mlx5_0:1.0 md[4] -> md[4] am\n# lane[1]:  9:rc_mlx5/mlx5_1:1.0 md[5] -> "
                     "md[5] am_bw#1\n"
                     "# lane[2]:  7:rc_mlx5/mlx5_0:1.1 md[4] -> md[4] am_bw#2\n"),
            "rc_mlx5/mlx5_0:1, rc_mlx5/mlx5_1:1");
  EXPECT_EQ(lanes_of("nothing of the kind"), "unknown");
  EXPECT_EQ(lanes_of("lane["), "unknown");
}

TEST(Ucx, ASettingThatItDoesNotTakeIsAnError) {
  const ManualClock clock;
  ClaimingReceiver receiver;
  const auto made = create_ucx_transport({.self = {NodeId{1}, Incarnation{1}},
                                          .clock = &clock,
                                          .receiver = &receiver,
                                          .settings = {{"RNDV_THRESH", "a lot"}}});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().status, VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(made.error().message, HasSubstr("UCX_RNDV_THRESH=a lot"));
}

// Without CUDA, as distributions build it, it is not asked to register GPU memory.
TEST(Ucx, SaysWhetherItMovesGpuMemory) {
  bool asked = false;
  const auto path = ask_ucx_about_memory(with_cuda({{"TLS", "tcp"}}), UcxMemoryType::cuda, [&]() -> Result<Bytes> {
    asked = true;
    return fail(VMEM_ERROR_UNSUPPORTED, "this test has no GPU");
  });
  if (asked) GTEST_SKIP() << "this UCX knows CUDA memory";
  ASSERT_TRUE(path) << path.error().message;
  EXPECT_FALSE(path->direct);
  EXPECT_EQ(path->why, "it has no CUDA memory type");
  EXPECT_THAT(path->version, ::testing::MatchesRegex("1\\.[0-9]+\\.[0-9]+"));
}

TEST(Ucx, MovesMemoryDirectlyThatItRegistersAsWhatItIs) {
  std::vector<std::byte> slab(2 << 20);
  const auto path =
      ask_ucx_about_memory({{"TLS", "tcp"}}, UcxMemoryType::host, [&]() -> Result<Bytes> { return Bytes(slab); });
  ASSERT_TRUE(path) << path.error().message;
  EXPECT_TRUE(path->direct) << path->why;
}

// As a transport asks that has no GPU memory of its own, and receives from its peers'.
TEST(Ucx, SaysWhetherItKnowsMemoryThatNoneIsThereOf) {
  const auto host = ask_ucx_about_memory({{"TLS", "tcp"}}, UcxMemoryType::host, {});
  ASSERT_TRUE(host) << host.error().message;
  EXPECT_TRUE(host->direct);
  const auto cuda = ask_ucx_about_memory({{"TLS", "tcp"}}, UcxMemoryType::cuda, {});
  ASSERT_TRUE(cuda) << cuda.error().message;
  EXPECT_FALSE(cuda->direct) << "not without its transport that copies CUDA memory";
  EXPECT_EQ(cuda->why, "it has no CUDA memory type");
}

TEST(Ucx, MemoryThatTheSlabLacksIsAnError) {
  const auto path = ask_ucx_about_memory({{"TLS", "tcp"}}, UcxMemoryType::host,
                                         []() -> Result<Bytes> { return fail(VMEM_ERROR_OUT_OF_MEMORY, "none"); });
  ASSERT_FALSE(path);
  EXPECT_EQ(path.error().status, VMEM_ERROR_OUT_OF_MEMORY);
  const auto none = ask_ucx_about_memory({{"TLS", "ib"}, {"NET_DEVICES", "none0:1"}}, UcxMemoryType::host, {});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().status, VMEM_ERROR_INVALID_OPTION);
}

// The memory of an emulated GPU is host memory. Each thread enters it before it uses UCX.
TEST(Ucx, SendsFromGpuMemoryThatItWasToldOf) {
  std::mutex mutex;
  std::set<std::thread::id> entered;
  UcxPair pair("tcp", 2, 2, true, UcxGpuMemory{.type = UcxMemoryType::host, .enter_thread = [&] {
                                                 const std::lock_guard lock(mutex);
                                                 entered.insert(std::this_thread::get_id());
                                               }});
  EXPECT_TRUE(pair.a.transport->sends_gpu_memory());
  EXPECT_FALSE(pair.b.transport->sends_gpu_memory());
  std::vector<std::byte> memory(8 << 20);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = TestNode::pattern(i, 7);
  EXPECT_FALSE(pair.b.transport->register_gpu_slab(memory));
  const auto slab = *pair.a.transport->register_gpu_slab(memory);
  pair.a.receiver.deadline_us = pair.b.receiver.deadline_us = 3600 * kSecondUs;
  const PeerId peer = *pair.a.transport->connect(pair.b.transport->address(), 3600 * kSecondUs);
  pair.a.send(peer, "page", {ConstBytes(memory).first(4 << 20)}, 3600 * kSecondUs);
  while (pair.b.count<Message>() == 0 || pair.a.count<Sent>() == 0) {
    pair.a.step();
    pair.b.step();
  }
  EXPECT_TRUE(TestNode::has_pattern(pair.b.all<Message>().front().second.payload, 7));
  const std::lock_guard lock(mutex);
  EXPECT_TRUE(entered.contains(std::this_thread::get_id()));
  EXPECT_EQ(entered.size(), 3u) << "two channels have a thread each";
}

// Which of the two takes what the other sends from its GPU memory: the first, the second.
std::pair<bool, bool> takers(std::optional<UcxMemoryType> a, std::optional<UcxMemoryType> b) {
  const auto memory = [](std::optional<UcxMemoryType> type) {
    return type ? std::optional(UcxGpuMemory{.type = *type}) : std::nullopt;
  };
  UcxPair pair("tcp", 1, 1, false, memory(a), memory(b));
  (void)*pair.a.transport->connect(pair.b.transport->address(), 3600 * kSecondUs);
  while (pair.a.count<Connected>() == 0 || pair.b.count<Connected>() == 0) {
    pair.a.step();
    pair.b.step();
  }
  return {pair.b.all<Connected>().front().second.takes_gpu_memory,
          pair.a.all<Connected>().front().second.takes_gpu_memory};
}

// UCX breaks the connection if it is to receive from CUDA memory and its own context knows none.
TEST(Ucx, APeerTakesCudaMemoryOnlyIfItSaysThatItKnowsIt) {
  constexpr auto kCuda = UcxMemoryType::cuda, kHost = UcxMemoryType::host;
  constexpr auto kNone = std::nullopt;
  EXPECT_EQ(takers(kCuda, kNone), std::pair(false, false));
  EXPECT_EQ(takers(kCuda, kCuda), std::pair(true, true));
  EXPECT_EQ(takers(kCuda, kHost), std::pair(true, false));
  EXPECT_EQ(takers(kHost, kNone), std::pair(false, true)) << "what is host memory, every UCX receives";
}

// What a node of an earlier release says: 0 where the flags are.
TEST(Ucx, APeerOfAnEarlierReleaseDoesNotSayThatItKnowsCuda) {
  const auto heard = [](std::uint32_t flags) {
    const ConstBytes magic = bytes_of("vmemucx1");
    std::vector<std::byte> said(magic.begin(), magic.end());
    const auto append = [&](auto value) {
      const auto bytes = std::as_bytes(std::span(&value, 1));
      said.insert(said.end(), bytes.begin(), bytes.end());
    };
    append(std::uint64_t{5});  // the link
    append(std::array<unsigned char, 16>{7});
    append(std::uint32_t{sizeof(std::uint32_t) + 1});  // bytes of the addresses
    append(flags);
    append(std::uint32_t{1});
    append(std::byte{9});
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    ByteStream ours{FileDescriptor(ends[0])};
    const FileDescriptor theirs(ends[1]);
    EXPECT_EQ(::send(theirs.get(), said.data(), said.size(), 0), static_cast<ssize_t>(said.size()));
    UcxExchange exchange({.link = 1, .key = {}, .addresses = {UcxAddress(8)}});
    EXPECT_TRUE(*exchange.advance(ours));
    return exchange.take();
  };
  EXPECT_EQ(heard(0).link, 5u);
  EXPECT_FALSE(heard(0).knows_cuda);
  EXPECT_TRUE(heard(1).knows_cuda);
  EXPECT_FALSE(heard(2).knows_cuda) << "a flag of a later release";
}

// Such memory is registered as what it is, or not at all: UCX would read it with the processor.
TEST(Ucx, GpuMemoryThatItDoesNotKnowIsNeverSentAsHostMemory) {
  UcxPair pair("tcp", 1, 1, false, UcxGpuMemory{.type = UcxMemoryType::cuda, .enter_thread = {}});
  std::vector<std::byte> memory(4 << 20);
  const auto slab = pair.a.transport->register_gpu_slab(memory);
  if (!slab) {
    EXPECT_THAT(slab.error().message, HasSubstr("ucp_mem_map failed"));
    return;
  }
  const ConstBytes spans[] = {ConstBytes(memory).first(1 << 20), ConstBytes(memory).last(1 << 20)};
  Send send{.peer = PeerId{1}, .header = bytes_of("page"), .payload = spans, .deadline_us = kSecondUs};
  const Status posted = pair.a.transport->send({&send, 1});
  ASSERT_FALSE(posted);
  EXPECT_THAT(posted.error().message, HasSubstr("its payload has 2 spans, and GPU memory goes as one"));
}

TEST(Ucx, TheProgramKeepsItsSignals) {
  const TcpPair pair;
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    struct sigaction action{};
    ASSERT_EQ(::sigaction(number, nullptr, &action), 0);
#ifndef __SANITIZE_ADDRESS__  // AddressSanitizer has its own handlers
    EXPECT_EQ(action.sa_handler, SIG_DFL) << number;
#endif
  }
}

TEST(Ucx, WhoIsRefusedLearnsWhyAndSoDoesTheOther) {
  ManualClock clock;
  TestNode a, b;
  const auto make = [&](TestNode& node, std::uint64_t id, std::string listen, std::uint64_t page_bytes) {
    node.start(*create_ucx_transport({.self = {NodeId{id}, Incarnation{1}},
                                      .parameters = {1, 2, page_bytes},
                                      .listen = std::move(listen),
                                      .clock = &clock,
                                      .receiver = &node.receiver,
                                      .settings = {{"TLS", "tcp"}}}));
  };
  make(a, 1, "", 2 << 20);
  make(b, 2, "127.0.0.1:0", 32 << 20);
  const PeerId peer = *a.transport->connect(b.transport->address(), kSecondUs);
  a.send(peer, "never", {}, kSecondUs);
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
       a.gone(peer) == nullptr && std::chrono::steady_clock::now() < end;) {
    a.step();
    b.step();
  }
  ASSERT_NE(a.gone(peer), nullptr);
  EXPECT_EQ(a.gone(peer)->reason, Reason::refused);
  EXPECT_THAT(a.gone(peer)->error.message, HasSubstr("page size is 32MiB, this node's 2MiB"));
  EXPECT_TRUE(a.under_way.empty());
  EXPECT_TRUE(b.events.empty()) << "nobody was connected";
}

// By number of channels; several channels have a thread each.
class UcxThreads : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  UcxPair pair{"tcp", GetParam(), GetParam(), true};
};

// Threads post to two peers that other threads progress; each message arrives.
TEST_P(UcxThreads, ManyPostWhileOthersProgress) {
  pair.a.receiver.deadline_us = pair.b.receiver.deadline_us = 3600 * kSecondUs;
  const PeerId peer = *pair.a.transport->connect(pair.b.transport->address(), 3600 * kSecondUs);
  const ProgressThread progress_a(*pair.a.transport), progress_b(*pair.b.transport);
  constexpr int kThreads = 3, kEach = 200;
  const Bytes payload = pair.a.outgoing(100'000, 1);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kEach; ++i) {
        const std::string header = fmt::format("{} {}", thread, i);
        const ConstBytes spans[] = {payload};
        Send send{.peer = peer, .header = bytes_of(header), .deadline_us = 3600 * kSecondUs};
        if (i % 8 == 0) send.payload = spans;
        while (!pair.a.transport->send({&send, 1})) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::string> arrived;
  while (arrived.size() < kThreads * kEach) {
    ASSERT_TRUE(pair.b.transport->wait(20 * kSecondUs)) << arrived.size();
    std::vector<Event> events;
    pair.b.transport->poll(events);
    for (const Event& event : events) {
      const Message* message = std::get_if<Message>(&event.what);
      if (message == nullptr) continue;
      EXPECT_TRUE(arrived.insert(text_of(message->header)).second);
      EXPECT_TRUE(TestNode::has_pattern(message->payload, 1));
    }
  }
}

TEST_P(UcxThreads, ConnectionsThatAreOverLeaveNoDescriptors) {
  const auto open_descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  const auto before = open_descriptors();
  for (int round = 0; round < 20; ++round) {
    const PeerId peer = *pair.a.transport->connect(pair.b.transport->address(), 3600 * kSecondUs);
    pair.a.send(peer, "under way", {pair.a.outgoing(8 << 20, 1)}, 3600 * kSecondUs);
    const std::size_t gone = pair.b.count<Gone>();
    for (bool closed = false; pair.a.gone(peer) == nullptr || pair.b.count<Gone>() == gone;) {
      pair.a.step();
      pair.b.step();
      if (!pair.b.receiver.claimed.empty() && !std::exchange(closed, true)) pair.a.transport->close(peer);
    }
  }
  // Events hold descriptors of the processes at the other ends.
  for (TestNode* node : {&pair.a, &pair.b}) node->events.clear();
  EXPECT_EQ(open_descriptors(), before);
}

TEST_P(UcxThreads, AnIdleConnectionLeavesTheProcessorAlone) {
  const PeerId peer = *pair.a.transport->connect(pair.b.transport->address(), 3600 * kSecondUs);
  const ProgressThread progress_a(*pair.a.transport), progress_b(*pair.b.transport);
  while (!pair.a.connected()) {
    ASSERT_TRUE(pair.a.transport->wait(20 * kSecondUs));
    pair.a.take();
  }
  const auto processor_us = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    const auto of = [](const timeval& time) {
      return static_cast<std::uint64_t>(time.tv_sec) * kSecondUs + static_cast<std::uint64_t>(time.tv_usec);
    };
    return of(usage.ru_utime) + of(usage.ru_stime);
  };
  const std::uint64_t before = processor_us();
  EXPECT_FALSE(pair.a.transport->wait(kSecondUs)) << "nothing happens";
  EXPECT_LT(processor_us() - before, kSecondUs / 4) << "threads that spin would take up to two seconds";
  pair.a.send(peer, "still there", {}, 3600 * kSecondUs);
  ASSERT_TRUE(pair.a.transport->wait(20 * kSecondUs));
}

// Events of the channels' threads wake a thread that sleeps in idle().
TEST_P(UcxThreads, WhoIsIdleIsWokenByWhatArrives) {
  pair.a.receiver.deadline_us = pair.b.receiver.deadline_us = 3600 * kSecondUs;
  const PeerId peer = *pair.a.transport->connect(pair.b.transport->address(), 3600 * kSecondUs);
  while (!pair.a.connected() || !pair.b.connected()) {
    pair.a.step();
    pair.b.step();
  }
  const ProgressThread progress_a(*pair.a.transport);
  for (int round = 0; round < 20; ++round) {
    const bool large = round % 2 == 0;
    pair.a.send(peer, "hello", large ? std::vector<ConstBytes>{pair.a.outgoing(2 << 20, 1)} : std::vector<ConstBytes>{},
                3600 * kSecondUs);
    const auto begun = std::chrono::steady_clock::now();
    for (const std::size_t before = pair.b.count<Message>(); pair.b.count<Message>() == before;) {
      if (!pair.b.step()) pair.b.transport->idle(60 * kSecondUs);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20));
  }
}

// Payloads received with their message occupy the receiver's memory until it takes them.
TEST_P(UcxThreads, WhoTakesNothingHoldsTheSenderUp) {
  const std::uint64_t far = 3600 * kSecondUs;
  pair.a.receiver.deadline_us = pair.b.receiver.deadline_us = far;
  const PeerId peer = *pair.a.transport->connect(pair.b.transport->address(), far);
  while (!pair.a.connected() || !pair.b.connected()) {
    pair.a.step();
    pair.b.step();
  }
  for (std::size_t i = 0; i < kMostOutstanding; ++i) pair.a.send(peer, "small", {pair.a.outgoing(16 << 10, 1)}, far);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (!pair.a.under_way.empty() && std::chrono::steady_clock::now() < end) pair.a.step();
  EXPECT_FALSE(pair.a.under_way.empty()) << "64 MiB were read that nobody takes";
  while (pair.b.count<Message>() < kMostOutstanding) {
    pair.a.step();
    pair.b.step();
  }
  EXPECT_TRUE(pair.b.receiver.claimed.empty());
}

// Covers sends posted before the poll that precedes the one that reports the end.
TEST_P(UcxThreads, NoSendEndsAfterItsPeerIsGone) {
  const std::uint64_t far = 3600 * kSecondUs;
  const ProgressThread progress_a(*pair.a.transport), progress_b(*pair.b.transport);
  for (int round = 0; round < 20; ++round) {
    const PeerId peer = *pair.a.transport->connect(pair.b.transport->address(), far);
    SendId newest{}, before_last_poll{};
    bool connected = false, gone = false;
    std::size_t late = 0;
    while (!gone) {
      std::vector<Event> events;
      pair.b.transport->poll(events);  // else b would stop reading
      events.clear();
      pair.a.transport->poll(events);
      for (const Event& event : events) {
        if (event.peer != peer) continue;
        gone = gone || std::holds_alternative<Gone>(event.what);
        if (std::holds_alternative<Connected>(event.what) && !std::exchange(connected, true))
          pair.a.transport->close(peer);
        if (const auto* failed = std::get_if<SendFailed>(&event.what))
          late += gone && failed->id <= before_last_poll ? 1 : 0;
      }
      if (!gone) before_last_poll = newest;
      for (int i = 0; connected && i < 32; ++i) {
        Send send{.peer = peer, .header = bytes_of("x"), .deadline_us = far};
        if (pair.a.transport->send({&send, 1})) newest = send.id;
      }
    }
    // Sends to this peer that fail from here on must have been posted later.
    std::vector<Event> events;
    while (pair.a.transport->wait(20'000)) {
      events.clear();
      pair.a.transport->poll(events);
      for (const Event& event : events) {
        const auto* failed = std::get_if<SendFailed>(&event.what);
        late += failed != nullptr && event.peer == peer && failed->id <= before_last_poll ? 1 : 0;
      }
    }
    EXPECT_EQ(late, 0u) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Ucx, UcxThreads, ::testing::Values(1u, 3u),
                         [](const auto& of) { return "Channels" + std::to_string(of.param); });

TEST(Ucx, MoreChannelsThanThereCanBeAreRefused) {
  const ManualClock clock;
  ClaimingReceiver receiver;
  for (const std::uint32_t channels : {0u, kMostChannels + 1}) {
    const auto made = create_ucx_transport(
        {.self = {NodeId{1}, Incarnation{1}}, .clock = &clock, .receiver = &receiver, .channels = channels});
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().status, VMEM_ERROR_INVALID_OPTION);
    EXPECT_THAT(made.error().message, HasSubstr(fmt::format("{} channels", channels)));
  }
}

}  // namespace
}  // namespace vmem::rdma
