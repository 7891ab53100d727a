// GPU memory lent between processes and returned.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/file_descriptor.hpp"
#include "peer/borrower.hpp"
#include "peer/lender.hpp"
#include "peer/living_child.hpp"
#include "runtime/emulated_gpu.hpp"

namespace vmem::peer {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
constexpr auto kLong = 20s;

struct HbmLending : ::testing::Test {
  test::EmulatedGpu gpu{"devices=2,hbm=64MiB,host=64MiB"};
  std::string folder = ::testing::TempDir() + "vmem-lending-XXXXXX";
  std::unique_ptr<Lender> lender;
  std::unique_ptr<Borrower> borrower;
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t limit = 0;  // of the latest borrower
  int borrowers = 0;

  void SetUp() override {
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    gpu.make_current(1);
  }
  void TearDown() override {
    borrower.reset();
    lender.reset();
    std::filesystem::remove_all(folder);
  }
  std::string path() const { return folder + "/hbm"; }
  Lender::Config lending(std::uint64_t most_bytes, std::chrono::microseconds deadline) {
    return {.driver = gpu.driver(),
            .device = 1,
            .context = gpu.context(1),
            .path = path(),
            .most_bytes = most_bytes,
            .deadline = deadline,
            .on_change = [this] {
              const std::lock_guard lock(mutex);
              changed.notify_all();
            }};
  }
  void lend(std::uint64_t bytes, std::chrono::microseconds deadline = kLong) {
    auto made = Lender::create(lending(8 * kPage, deadline));
    ASSERT_TRUE(made) << made.error().message;
    lender = std::move(*made);
    lender->set_limit(bytes);
  }
  void borrow() {
    auto made = Borrower::connect({.driver = gpu.driver(), .path = path()});
    ASSERT_TRUE(made) << made.error().message;
    borrower = std::move(*made);
    {
      const std::lock_guard lock(mutex);
      ++borrowers;
    }
    borrower->start([this, number = borrowers](std::uint64_t bytes) {
      const std::lock_guard lock(mutex);
      if (number == borrowers) limit = bytes;
      changed.notify_all();
    });
  }
  bool wait_until(const std::function<bool()>& true_now) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kLong, true_now);
  }
  CUmemGenericAllocationHandle take(std::uint64_t bytes = kPage) {
    auto made = borrower->make(bytes);
    EXPECT_TRUE(made) << made.error().message;
    return made ? *made : 0;
  }
};

TEST_F(HbmLending, APieceIsMemoryOfTheLendersDevice) {
  lend(4 * kPage);
  borrow();
  EXPECT_TRUE(wait_until([&] { return limit == 4 * kPage; }));
  CUuuid uuid{};
  ASSERT_EQ(gpu.cu().cuDeviceGetUuid(&uuid, 1), CUDA_SUCCESS);
  EXPECT_EQ(std::memcmp(uuid.bytes, borrower->device().data(), sizeof uuid.bytes), 0);
  const CUmemGenericAllocationHandle piece = take(2 * kPage);
  CUmemAllocationProp properties{};
  ASSERT_EQ(gpu.cu().cuMemGetAllocationPropertiesFromHandle(&properties, piece), CUDA_SUCCESS);
  EXPECT_EQ(properties.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(properties.location.id, 1);
  EXPECT_EQ(lender->usage().held_bytes, 2 * kPage);
  EXPECT_EQ(lender->usage().borrowers, 1u);
  ASSERT_TRUE(borrower->release(piece));
  EXPECT_TRUE(wait_until([&] { return lender->usage().held_bytes == 0; }));
}

TEST_F(HbmLending, MoreThanIsLentIsNotHad) {
  lend(2 * kPage);
  borrow();
  const CUmemGenericAllocationHandle piece = take(2 * kPage);
  const auto more = borrower->make(kPage);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().status, VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(more.error().message.find("all that it lends is held"), std::string::npos) << more.error().message;
  ASSERT_TRUE(borrower->release(piece));
  ASSERT_TRUE(borrower->release(take(kPage)));
}

TEST_F(HbmLending, WhatTheDeviceHasNoRoomForIsNotHadEither) {
  lend(8 * kPage);
  borrow();
  CUmemGenericAllocationHandle own = 0;
  const CUmemAllocationProp properties = gpu::device_memory(1, false);
  ASSERT_EQ(gpu.cu().cuMemCreate(&own, 31 * kPage, &properties, 0), CUDA_SUCCESS);
  const auto none = borrower->make(4 * kPage);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().status, VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(lender->usage().held_bytes, 0u);
  EXPECT_EQ(gpu.cu().cuMemRelease(own), CUDA_SUCCESS);
  ASSERT_TRUE(borrower->release(take(4 * kPage)));
}

TEST_F(HbmLending, WhoHoldsMostIsAskedFirstToGiveBack) {
  lend(6 * kPage);
  borrow();
  const auto first = std::move(borrower);
  borrow();
  const CUmemGenericAllocationHandle small = *first->make(kPage), large = take(4 * kPage);
  lender->set_limit(3 * kPage);
  EXPECT_TRUE(wait_until([&] { return limit == 2 * kPage; })) << limit / kPage;
  EXPECT_EQ(lender->usage().overdue_bytes, 0u) << "there is time";
  ASSERT_TRUE(borrower->release(large));
  EXPECT_TRUE(wait_until([&] { return lender->usage().held_bytes == kPage; }));
  EXPECT_FALSE(borrower->make(4 * kPage));
  ASSERT_TRUE(borrower->release(take(2 * kPage)));
  ASSERT_TRUE(first->release(small));
}

TEST_F(HbmLending, WhatIsNotGivenBackInTimeIsOverdueUntilItIs) {
  lend(4 * kPage, 1ms);
  borrow();
  const CUmemGenericAllocationHandle one = take(kPage), two = take(kPage);
  lender->set_limit(0);
  EXPECT_TRUE(wait_until([&] { return lender->usage().overdue_bytes == 2 * kPage; }));
  ASSERT_TRUE(borrower->release(one));
  EXPECT_TRUE(wait_until([&] { return lender->usage().overdue_bytes == kPage; }));
  ASSERT_TRUE(borrower->release(two));
  EXPECT_TRUE(wait_until([&] { return lender->usage().overdue_bytes == 0; }));
  EXPECT_EQ(lender->usage().held_bytes, 0u);
}

// More returns than a socket can hold unread.
TEST_F(HbmLending, NoGiveIsLost) {
  lend(8 * kPage);
  borrow();
  for (int i = 0; i < 3000; ++i) {
    const auto piece = borrower->make(kPage);
    if (piece) {
      ASSERT_TRUE(borrower->release(*piece));
    }
  }
  EXPECT_TRUE(wait_until([&] { return lender->usage().held_bytes == 0; }));
}

TEST_F(HbmLending, ABorrowerThatEndsInOrderHoldsNothing) {
  lend(8 * kPage);
  for (int round = 0; round < 20; ++round) {
    borrow();
    const CUmemGenericAllocationHandle piece = take();
    lender->set_limit(std::uint64_t(1 + round % 7) * kPage);  // nobody reads this any more
    ASSERT_TRUE(borrower->release(piece));
    borrower.reset();
  }
  EXPECT_TRUE(wait_until([&] { return lender->usage().held_bytes == 0; }));
}

TEST_F(HbmLending, ALenderThatEndsLeavesWhatIsHeld) {
  lend(4 * kPage);
  borrow();
  const CUmemGenericAllocationHandle piece = take(kPage);
  lender.reset();
  EXPECT_TRUE(wait_until([&] { return limit == kPage; }));
  const auto more = borrower->make(kPage);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().status, VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(borrower->release(piece));
}

TEST_F(HbmLending, NobodyLendsThere) {
  const auto none = Borrower::connect({.driver = gpu.driver(), .path = path()});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().status, VMEM_ERROR_INVALID_OPTION);
  EXPECT_NE(none.error().message.find("--lend"), std::string::npos) << none.error().message;
}

TEST_F(HbmLending, WhatIsNoSocketIsLeftAlone) {
  std::ofstream(path()) << "precious";
  const auto refused = Lender::create(lending(kPage, kLong));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find(path()), std::string::npos) << refused.error().message;
  std::string there;
  std::ifstream(path()) >> there;
  EXPECT_EQ(there, "precious");
}

// Any user who can open the folder, such as /tmp, can lock it.
TEST_F(HbmLending, AFolderThatSomebodyKeepsLockedStopsNobodyForLong) {
  const FileDescriptor locked(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(locked.get(), LOCK_EX), 0);
  const auto made = Lender::create(lending(8 * kPage, kLong));
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().message.find("locked"), std::string::npos) << made.error().message;
  ASSERT_EQ(::flock(locked.get(), LOCK_UN), 0);
  lend(kPage);
  ASSERT_EQ(::flock(locked.get(), LOCK_EX), 0);
  lender.reset();  // its name stays, and the next lender takes it over
  ASSERT_EQ(::flock(locked.get(), LOCK_UN), 0);
  lend(kPage);
}

TEST_F(HbmLending, ALenderThatEndsTakesAwayItsOwnNameOnly) {
  lend(kPage);
  std::filesystem::rename(path(), folder + "/moved");
  const auto other = listen_at(path());
  ASSERT_TRUE(other);
  lender.reset();
  EXPECT_TRUE(std::filesystem::exists(path()));
}

TEST_F(HbmLending, ALenderTakesTheNameOfOneThatIsGoneAndOfNoOther) {
  lend(kPage);
  const auto second = Lender::create(lending(kPage, kLong));
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().message.find(path()), std::string::npos) << second.error().message;
  // A killed process leaves its socket file.
  const pid_t child = ::fork();
  if (child == 0) ::_exit(listen_at(folder + "/dead") ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_TRUE(listen_at(folder + "/dead"));
}

Message next_message(int socket) {
  wait_readable(socket, kLong);
  auto received = receive(socket);
  return received && *received ? (**received).message : Message{};
}

TEST_F(HbmLending, AForkedChildOfALenderKeepsNoConnection) {
  lend(2 * kPage);
  const auto socket = connect_to(path());
  ASSERT_TRUE(socket) << socket.error().message;
  ASSERT_TRUE(send(socket->get(), {.kind = Kind::hello}));
  ASSERT_EQ(next_message(socket->get()).kind, Kind::welcome);
  const LivingChild child;
  lender.reset();
  Result<std::optional<Received>> received;
  do {
    wait_readable(socket->get(), 1s);
    received = receive(socket->get());
  } while (received && *received);
  EXPECT_FALSE(received) << "the lender has closed it";
}

// Another process, which only communicates: no driver works in a forked child.
class Child {
 public:
  // Runs `says` with its connection, then stays until it is killed.
  Child(const std::string& path, const std::function<void(int)>& says) {
    int ready[2];
    if (::pipe(ready) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      auto socket = connect_to(path);
      if (socket) says(socket->get());
      if (::write(ready[1], "r", 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char got = 0;
    if (::read(ready[0], &got, 1) != 1) std::abort();
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
};

void take_one(int socket) {
  (void)send(socket, {.kind = Kind::hello});
  (void)next_message(socket);
  (void)send(socket, {.kind = Kind::take, .number = 1, .bytes = kPage});
  (void)next_message(socket);
}

TEST_F(HbmLending, WhatADeadProcessHeldIsFree) {
  lend(2 * kPage);
  Child child(path(), take_one);
  EXPECT_TRUE(wait_until([&] { return lender->usage().held_bytes == kPage; }));
  lender->set_limit(0);
  child.kill();
  EXPECT_TRUE(wait_until([&] { return lender->usage().held_bytes == 0; }));
  EXPECT_EQ(lender->usage().overdue_bytes, 0u);
}

TEST_F(HbmLending, WhatASilentProcessHoldsIsCountedUntilItEnds) {
  lend(2 * kPage);
  // It shuts the connection down but keeps the memory.
  Child child(path(), [](int socket) {
    take_one(socket);
    ::shutdown(socket, SHUT_RDWR);
  });
  EXPECT_TRUE(wait_until([&] { return lender->usage().overdue_bytes == kPage; }));
  EXPECT_EQ(lender->usage().held_bytes, kPage);
  borrow();
  EXPECT_TRUE(wait_until([&] { return limit == kPage; })) << "what is left";
  child.kill();
  EXPECT_TRUE(wait_until([&] { return limit == 2 * kPage; }));
  EXPECT_EQ(lender->usage().held_bytes, 0u);
}

// The lender reads 64 messages at a time. It finds the connection closed when it answers the first
// of them, before it has read what follows.
TEST_F(HbmLending, WhatWasGivenBackBeforeTheConnectionEndedIsFree) {
  // Shared, because the lender outlives this function.
  const auto reads_on = std::make_shared<std::atomic<bool>>(false);
  auto config = lending(2 * kPage, kLong);
  config.on_change = [reads_on, notify = config.on_change] {
    notify();
    reads_on->wait(false);
  };
  auto made = Lender::create(config);
  ASSERT_TRUE(made) << made.error().message;
  lender = std::move(*made);
  lender->set_limit(kPage);
  {
    const auto socket = connect_to(path());
    ASSERT_TRUE(socket) << socket.error().message;
    take_one(socket->get());
    EXPECT_TRUE(wait_until([&] { return lender->usage().held_bytes == kPage; }));
    for (std::uint64_t more = 2; more <= 100; ++more)
      EXPECT_TRUE(send(socket->get(), {.kind = Kind::take, .number = more, .bytes = kPage}));
    EXPECT_TRUE(send(socket->get(), {.kind = Kind::give, .number = 1}));
  }
  *reads_on = true;
  reads_on->notify_all();
  EXPECT_TRUE(wait_until([&] { return lender->usage().held_bytes == 0; }));
  borrow();
  ASSERT_TRUE(borrower->release(take()));
}

TEST_F(HbmLending, WhoTalksNonsenseIsHungUpOn) {
  lend(2 * kPage);
  const std::vector<std::function<void(int)>> nonsense{
      [](int socket) { (void)!::write(socket, "hello", 5); },
      [](int socket) { (void)send(socket, {.kind = Kind::take, .number = 1, .bytes = kPage}); },
      [](int socket) {
        (void)send(socket, {.kind = Kind::hello});
        (void)next_message(socket);
        (void)send(socket, {.kind = Kind::take, .number = 1, .bytes = 5});
      },
      [](int socket) { (void)send(socket, {.kind = Kind::give, .number = 7}); },
      [](int socket) { (void)send(socket, {.version = 99, .kind = Kind::hello}); },
  };
  for (std::size_t i = 0; i < nonsense.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "case " << i);
    const auto socket = connect_to(path());
    ASSERT_TRUE(socket);
    nonsense[i](socket->get());
    Result<std::optional<Received>> received;
    do {
      wait_readable(socket->get(), kLong);
      received = receive(socket->get());
    } while (received && *received);
    EXPECT_FALSE(received) << "closed";
  }
  borrow();
  ASSERT_TRUE(borrower->release(take()));
}

TEST_F(HbmLending, IdleConnectionsKeepNobodyOutAndWhoHoldsMemoryStays) {
  lend(4 * kPage);
  borrow();
  const CUmemGenericAllocationHandle piece = take();
  std::vector<OwnDescriptor> idle;
  for (int i = 0; i < 100; ++i) {
    auto socket = connect_to(path());
    ASSERT_TRUE(socket) << socket.error().message;
    ASSERT_TRUE(send(socket->get(), {.kind = Kind::hello}));
    ASSERT_EQ(next_message(socket->get()).kind, Kind::welcome) << "connection " << i;
    idle.push_back(std::move(*socket));
  }
  EXPECT_LE(lender->usage().borrowers, 64u);
  auto another = Borrower::connect({.driver = gpu.driver(), .path = path()});
  EXPECT_TRUE(another) << another.error().message;
  EXPECT_EQ(lender->usage().held_bytes, kPage);
  ASSERT_TRUE(borrower->release(piece));
  ASSERT_TRUE(borrower->release(take())) << "it is still connected";
}

TEST_F(HbmLending, OtherUsersAreRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "another user can only be played by root";
  lend(2 * kPage);
  std::filesystem::permissions(folder, std::filesystem::perms::all);
  std::filesystem::permissions(path(), std::filesystem::perms::all);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setuid(65534) != 0) ::_exit(2);
    auto socket = connect_to(path());
    if (!socket) ::_exit(3);
    const Message answer = next_message(socket->get());
    ::_exit(answer.kind == Kind::refused && answer.said().find("user 0 only") != std::string::npos ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(lender->usage().borrowers, 0u);
}

}  // namespace
}  // namespace vmem::peer
