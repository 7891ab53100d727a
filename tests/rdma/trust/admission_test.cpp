// The cost of unauthenticated connections to their host's budget. The clock stands still, so no
// budget is restored.
#include "rdma/trust/admission.hpp"

#include <gmock/gmock.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <ctime>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "rdma/transport/stream_node.hpp"
#include "rdma/trust/secret_file.hpp"

namespace vmem::rdma::stream {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kHostUs = 50'000;

std::uint64_t thread_cpu_us() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000 + static_cast<std::uint64_t>(time.tv_nsec) / 1000;
}

class AdmissionCost : public testing::Test {
 protected:
  AdmissionCost() {
    Admission::Config config{.self = {NodeId{2}, Incarnation{1}},
                             .parameters = kParameters,
                             .listen = "127.0.0.1:0",
                             .tls = *TlsContext::create(crypto_, SecretFile().read()),
                             .crypto = crypto_.get(),
                             .clock = &clock_};
    config.limits.host_us = kHostUs;
    admission_ = *Admission::create(context_, config, [this](Admission::SetUp outcome) {
      ASSERT_TRUE(outcome.failed);
      if (outcome.failed->message.find("has used up the processor time") != std::string::npos)
        turned_away_.push_back(outcome.address);
    });
  }
  // From a host of its own: a loopback address with port 0.
  FileDescriptor dial(const std::string& source) const {
    const auto from = *SocketAddress::parse(source), to = *SocketAddress::parse(admission_->address());
    FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(socket.get(), from.get(), from.size()), 0);
    (void)::connect(socket.get(), to.get(), to.size());
    return socket;
  }
  // Runs the admission and returns the processor time used, in microseconds.
  std::uint64_t run() {
    context_.restart();
    const std::uint64_t began_us = thread_cpu_us();
    context_.poll();
    return thread_cpu_us() - began_us;
  }
  // `connect` opens connections of 127.0.0.2 until one is rejected or they cost more than allowed.
  template <class Connect>
  void expect_that_the_host_pays(Connect connect) {
    std::uint64_t spent_us = 0;
    while (turned_away_.empty() && spent_us < 2 * kHostUs) {
      connect();
      spent_us += run();
    }
    ASSERT_FALSE(turned_away_.empty()) << "of what it cost, less than half was charged";
    EXPECT_THAT(turned_away_.front(), HasSubstr("127.0.0.2:"));
    turned_away_.clear();
    const FileDescriptor other = dial("127.0.0.3:0");
    run();
    EXPECT_TRUE(turned_away_.empty()) << "another host pays for it";
    const FileDescriptor same = dial("127.0.0.2:0");
    run();
    EXPECT_EQ(turned_away_.size(), 1u);
  }

  CryptoRef crypto_ = *Crypto::load();
  ManualClock clock_;
  boost::asio::io_context context_;
  std::vector<std::string> turned_away_;
  std::unique_ptr<Admission> admission_;
};

TEST_F(AdmissionCost, AHostThatOnlyConnectsAndClosesIsTurnedAwayAndNoOtherHost) {
  expect_that_the_host_pays([&] {
    for (int i = 0; i < 8; ++i) (void)dial("127.0.0.2:0");
  });
}

// Each new connection displaces the host's oldest.
TEST_F(AdmissionCost, AHostThatConnectsAndSaysNothingIsTurnedAwayAndNoOtherHost) {
  std::deque<FileDescriptor> silent;
  expect_that_the_host_pays([&] {
    for (int i = 0; i < 8; ++i) silent.push_back(dial("127.0.0.2:0"));
    while (silent.size() > 64) silent.pop_front();
  });
}

}  // namespace
}  // namespace vmem::rdma::stream
