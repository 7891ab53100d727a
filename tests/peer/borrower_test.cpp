// A borrower of GPU memory, with the lender played by the test.
#include "peer/borrower.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "peer/wire.hpp"
#include "runtime/emulated_gpu.hpp"

namespace vmem::peer {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
constexpr std::chrono::seconds kLong{20};

Message next_message(int socket) {
  wait_readable(socket, kLong);
  auto received = receive(socket);
  return received && *received ? (**received).message : Message{};
}

// The borrower has no free file descriptor for the granted memory. The piece returns to the lender,
// and both continue.
TEST(Borrower, AGrantWhoseMemoryDidNotArriveIsGivenBack) {
  test::EmulatedGpu gpu{"hbm=64MiB,host=64MiB"};
  std::string folder = ::testing::TempDir() + "vmem-borrower-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/hbm";
  const auto listener = listen_at(path);
  ASSERT_TRUE(listener) << listener.error().message;
  std::unique_ptr<Borrower> borrower;
  std::thread connecting([&] {
    auto made = Borrower::connect({.driver = gpu.driver(), .path = path});
    ASSERT_TRUE(made) << made.error().message;
    borrower = std::move(*made);
    borrower->start([](std::uint64_t) {});
  });
  wait_readable(listener->socket.get(), kLong);
  const auto socket = accept_from(listener->socket.get());
  ASSERT_TRUE(socket) << socket.error().message;
  EXPECT_EQ(next_message(socket->get()).kind, Kind::hello);
  ASSERT_TRUE(send(socket->get(), {.kind = Kind::welcome, .bytes = kPage, .most_bytes = kPage}));
  connecting.join();
  ASSERT_NE(borrower, nullptr);
  const auto make = [&](const Message& answer, int descriptor) {
    Result<CUmemGenericAllocationHandle> made = 0;
    std::thread making([&] { made = borrower->make(kPage); });
    Message told = answer;
    told.number = next_message(socket->get()).number;
    EXPECT_TRUE(send(socket->get(), told, descriptor));
    if (answer.kind == Kind::grant) {
      const Message given = next_message(socket->get());
      EXPECT_EQ(given.kind, Kind::give);
      EXPECT_EQ(given.number, told.number);
    }
    making.join();
    EXPECT_FALSE(made);
    return made ? std::string() : made.error().message;
  };
  // First, because UBSan's first check of a type opens a pipe.
  const std::string full = make({.kind = Kind::full}, -1);
  EXPECT_NE(full.find("all that it lends is held"), std::string::npos) << full;
  rlimit most{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &most), 0);
  const rlimit none{3, most.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::string refused = make({.kind = Kind::grant, .bytes = kPage}, listener->socket.get());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &most), 0);
  EXPECT_NE(refused.find("file descriptor"), std::string::npos) << refused;
  EXPECT_EQ(make({.kind = Kind::full}, -1), full);
  borrower.reset();
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace vmem::peer
