// Compares pages sent to a lender and back over TLS, protected by their owner, with as many bare
// TLS connections that only apply the same protection in their threads:
//   sealed_bench BYTES COUNT [CONNECTIONS] [REPEATS] [encrypt]
// Uses two processes on this machine. Runs alternate; prints medians and quartiles in GB/s.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <string_view>

#include "bench/micro/bare_tls.hpp"
#include "bench/micro/secret_file.hpp"
#include "rdma/lending/memory_service/memory_service.hpp"
#include "rdma/lending/remote_tier/remote_tier.hpp"
#include "rdma/transport/stream/stream_transport.hpp"

namespace {

using namespace vmem;
using namespace vmem::rdma;
using namespace vmem::bench;
using tiers::Direction;

constexpr std::size_t kPages = 16;  // number of pages, all in flight at once

struct Setting {
  std::size_t bytes = 0, count = 0;
  std::uint32_t connections = 1;
  std::size_t repeats = 5;
  PageAead::Mode mode = PageAead::Mode::authenticate;
  std::string secret;
  // Opened anew in each process: a forked one has no keys.
  KeyringRef keyring() const { return Keyring::open(secret).value(); }
  double rate(std::chrono::steady_clock::time_point start) const {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return static_cast<double>(count * bytes) / took.count() / 1e9;
  }
};

Result<std::unique_ptr<Transport>> transport(const Setting& setting, std::uint64_t id, std::string listen,
                                             const Clock& clock, Receiver& receiver) {
  return create_stream_transport({.self = {NodeId{id}, Incarnation{1}},
                                  .listen = std::move(listen),
                                  .keyring = setting.keyring(),
                                  .clock = &clock,
                                  .receiver = &receiver,
                                  .channels = setting.connections});
}

void say(int pipe, const std::string& address) {
  const std::string line = address + "\n";
  require(::write(pipe, line.data(), line.size()) > 0, "pipe");
}

std::unique_ptr<Node> make_node(const Setting& setting, std::uint64_t id, const std::string& listen,
                                const Clock& clock) {
  NodeSetup setup{.self = {NodeId{id}, Incarnation{1}}, .make_transport = {}, .clock = &clock, .times = {}};
  setup.make_transport = [&](Receiver& receiver) { return transport(setting, id, listen, clock, receiver); };
  return Node::create(std::move(setup)).value();
}

// ---- a lender ----

[[noreturn]] void lend(const Setting& setting, int pipe) {
  const SteadyClock clock;
  const std::size_t bytes = 2 * kPages * setting.bytes;
  MemoryService service({.clock = &clock, .memory = {page_aligned(bytes), bytes}, .workers = 1});
  const auto node = make_node(setting, 2, "127.0.0.1:0", clock);
  require(service.start(*node).has_value(), "service");
  node->start();
  say(pipe, node->transport().address());
  for (;;) ::pause();
}

class Borrower {
 public:
  Borrower(const Setting& setting, const std::string& lender)
      : setting_(setting), owned_(page_aligned(kPages * setting.bytes), &std::free) {
    RemoteTier::Config config;
    config.peers = {lender};
    config.protection = setting.mode;
    config.workers = setting.connections;
    config.channels = setting.connections;
    config.on_ready = [this] {
      const std::lock_guard lock(mutex_);
      ready_ = true;
      changed_.notify_all();
    };
    node_ = make_node(setting_, 1, "", clock_);
    tier_ = RemoteTier::create(std::move(config), *node_).value();
    node_->start();
    require(tier_->wait_for_peers(10'000'000).has_value(), "lender");
    for (std::size_t i = 0; i < kPages; ++i) slots_.push_back(tier_->allocate(setting.bytes).value().slot);
    (void)move(Direction::store);  // the lender touches its memory, and pages exist to load
  }
  double move(Direction direction) {
    const auto start = std::chrono::steady_clock::now();
    std::size_t submitted = 0, done = 0;
    for (; submitted < std::min(kPages, setting_.count); ++submitted) submit(direction, submitted);
    while (done < setting_.count) {
      wait();
      completions_.clear();
      require(tier_->poll(completions_).has_value(), "poll");
      for (const auto& each : completions_) {
        if (each.outcome != tiers::Outcome::done) {
          fmt::print(stderr, "{}\n", each.error.message);
          std::exit(1);
        }
        ++done;
        const std::size_t page = page_of_.extract(each.id).mapped();
        if (submitted < setting_.count) submit(direction, page), ++submitted;
      }
    }
    return setting_.rate(start);
  }

 private:
  void submit(Direction direction, std::size_t index) {
    const std::size_t page = index % kPages;
    tiers::Transfer transfer;
    transfer.page.granule = static_cast<std::uint32_t>(page);
    transfer.version = 1;
    transfer.slot = slots_[page];
    transfer.host = owned_.get() + page * setting_.bytes;
    transfer.bytes = setting_.bytes;
    transfer.direction = direction;
    require(tier_->submit({&transfer, 1}).has_value(), "submit");
    page_of_.emplace(transfer.id, page);
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return std::exchange(ready_, false); });
  }

  const Setting setting_;
  const SteadyClock clock_;
  std::unique_ptr<std::byte, decltype(&std::free)> owned_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_ = false;
  std::vector<tiers::SlotId> slots_;
  std::unordered_map<std::uint64_t, std::size_t> page_of_;
  std::vector<tiers::Completion> completions_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<RemoteTier> tier_;
};

// ---- bare connections ----

// Reads and writes equal numbers of pages, in an endless loop.
[[noreturn]] void serve_bare(const Setting& setting, int pipe) {
  BarePeer peer(setting.keyring(), setting.connections, setting.bytes);
  const BareListener listener;
  say(pipe, listener.address);
  peer.accept(listener.socket.get());
  peer.in_threads([&](const BareStream& stream, Bytes memory) {
    const std::size_t count = setting.count / setting.connections;
    for (;;) {
      for (std::size_t i = 0; i < count; ++i) stream.read(memory);
      stream.write(memory.first(1));
      stream.read(memory.first(1));
      for (std::size_t i = 0; i < count; ++i) stream.write(memory);
    }
  });
  std::exit(0);
}

class BareClient {
 public:
  BareClient(const Setting& setting, const std::string& server)
      : setting_(setting),
        peer_(setting.keyring(), setting.connections, setting.bytes),
        aead_(PageAead::create(setting.mode).value()) {
    peer_.connect(server);
    proofs_.resize(setting.connections);
    for (std::uint32_t i = 0; i < setting.connections; ++i) stored_.emplace_back(setting.bytes);
  }
  double write() {
    return run([&](const BareStream& stream, Bytes memory, std::size_t i) {
      proofs_[i] = aead_->protect(memory, identity(), stored_[i]);
      stream.write(aead_->encrypts() ? ConstBytes(stored_[i]) : ConstBytes(memory));
    });
  }
  // Verifies the data read but ignores the verdict.
  double read() {
    return run([&](const BareStream& stream, Bytes memory, std::size_t i) {
      stream.read(memory);
      (void)aead_->recover(memory, identity(), proofs_[i]);
    });
  }

 private:
  tiers::PageIdentity identity() const { return {{pagetable::Serial{1}, 1}, 1, setting_.bytes, 0}; }
  template <class Turn>
  double run(Turn turn) {
    const auto start = std::chrono::steady_clock::now();
    peer_.in_threads([&](const BareStream& stream, Bytes memory) {
      const auto i = static_cast<std::size_t>(&stream - peer_.streams.data());
      for (std::size_t n = 0; n < setting_.count / setting_.connections; ++n) turn(stream, memory, i);
      if (writes_) stream.read(memory.first(1));
    });
    const double rate = setting_.rate(start);
    if (writes_) peer_.in_threads([](const BareStream& stream, Bytes memory) { stream.write(memory.first(1)); });
    writes_ = !writes_;
    return rate;
  }

  const Setting setting_;
  BarePeer peer_;
  std::unique_ptr<PageAead> aead_;
  std::vector<PageAead::Proof> proofs_;
  std::vector<std::vector<std::byte>> stored_;
  bool writes_ = true;  // write() and read() alternate
};

// ---- runs ----

struct Child {
  pid_t process = 0;
  std::string address;
};
template <class Body>
Child start(Body body) {
  int pipe[2];
  require(::pipe(pipe) == 0, "pipe");
  Child child;
  child.process = ::fork();
  require(child.process >= 0, "fork");
  if (child.process == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    body(pipe[1]);
  }
  ::close(pipe[1]);
  for (char c = 0; ::read(pipe[0], &c, 1) == 1 && c != '\n';) child.address += c;
  ::close(pipe[0]);
  return child;
}

void stop(const Child& child) {
  ::kill(child.process, SIGKILL);
  ::waitpid(child.process, nullptr, 0);
}

void print(std::string_view way, std::vector<double> limit, std::vector<double> achieved) {
  std::ranges::sort(limit);
  std::ranges::sort(achieved);
  const auto at = [](const std::vector<double>& sorted, std::size_t quarter) {
    return sorted[(sorted.size() - 1) * quarter / 4];
  };
  fmt::print("{}: bare {:.2f} ({:.2f} to {:.2f}), pages {:.2f} ({:.2f} to {:.2f}), ratio {:.2f}\n", way, at(limit, 2),
             at(limit, 1), at(limit, 3), at(achieved, 2), at(achieved, 1), at(achieved, 3),
             at(achieved, 2) / at(limit, 2));
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i, std::size_t otherwise) {
    return argc > i ? std::strtoull(argv[i], nullptr, 10) : otherwise;
  };
  Setting setting{.bytes = number(1, 0), .count = number(2, 0)};
  setting.connections = static_cast<std::uint32_t>(number(3, 1));
  setting.repeats = number(4, 5);
  if (argc > 5 && std::string_view(argv[5]) == "encrypt") setting.mode = PageAead::Mode::encrypt;
  if (setting.bytes == 0 || setting.count == 0 || setting.connections == 0 || setting.repeats == 0) {
    fmt::print(stderr, "sealed_bench BYTES COUNT [CONNECTIONS] [REPEATS] [encrypt]\n");
    return 2;
  }
  setting.count = setting.count / setting.connections * setting.connections;
  char path[] = "/tmp/vmem_bench_XXXXXX";
  require(make_secret_file(path), path);
  setting.secret = path;
  const Child lender = start([&](int pipe) { lend(setting, pipe); });
  const Child server = start([&](int pipe) { serve_bare(setting, pipe); });
  {
    Borrower borrower(setting, lender.address);
    BareClient client(setting, server.address);
    std::vector<double> limit_out, limit_in, out, in;
    for (std::size_t i = 0; i < setting.repeats; ++i) {
      limit_out.push_back(client.write());
      out.push_back(borrower.move(Direction::store));
      limit_in.push_back(client.read());
      in.push_back(borrower.move(Direction::load));
    }
    fmt::print("{} pages of {} bytes over {} connections, {}, median (quartiles) of {} runs, GB/s\n", setting.count,
               setting.bytes, setting.connections,
               setting.mode == PageAead::Mode::encrypt ? "encrypted" : "authenticated", setting.repeats);
    print("out", limit_out, out);
    print("in", limit_in, in);
    stop(server);  // before its connections end
  }
  stop(lender);
  ::unlink(path);
  return 0;
}
