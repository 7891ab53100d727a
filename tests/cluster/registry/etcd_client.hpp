// A client of etcd that waits for its replies.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "cluster/registry/etcd/etcd_registry.hpp"
#include "cluster/registry/etcd_server.hpp"
#include "cluster/registry/registry_conformance.hpp"

namespace vmem::cluster {

// Waits for a callback of the registry.
class Signal {
 public:
  void set() {
    const std::lock_guard lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  // Returns after a short time without a signal, too: some tests wait for time to pass.
  void wait() {
    std::unique_lock lock(mutex_);
    (void)changed_.wait_for(lock, std::chrono::milliseconds(20), [this] { return set_; });
    set_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

class EtcdClient {
 public:
  explicit EtcdClient(const std::string& address, std::uint64_t try_us = 30'000'000, TlsFiles tls = {}) {
    auto parsed = parse_etcd_address(address);
    EXPECT_TRUE(parsed) << parsed.error().message;
    auto created = EtcdRegistry::create(
        {.address = *std::move(parsed), .tls = std::move(tls), .try_us = try_us, .on_ready = [this] {
           signal_.set();
         }});
    EXPECT_TRUE(created) << created.error().message;
    registry_ = *std::move(created);
  }

  Registry& registry() { return *registry_; }
  void pass() { signal_.wait(); }
  auto asker() {
    return Asker(registry(), [this] { pass(); });
  }
  // Asks until the reply is no error.
  Reply insist(const RegistryRequest& request) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    auto asking = asker();
    for (;;) {
      Reply reply = asking.ask(request);
      const auto* error = std::get_if<Error>(&reply.what);
      if (error == nullptr || std::chrono::steady_clock::now() > end) {
        EXPECT_EQ(error, nullptr) << error->message;
        return reply;
      }
      pass();
    }
  }
  Error error(RegistryRequest request) { return asker().template get<Error>(std::move(request)); }
  // Drops what is in flight.
  void end() { registry_.reset(); }

 private:
  Signal signal_;
  std::unique_ptr<EtcdRegistry> registry_;
};

inline std::string address_of(const EtcdServers& servers, const std::string& cluster = "test") {
  return fmt::format("etcd://{}/{}", servers.all_endpoints(), cluster);
}

// Returns once each server answers with the agreement of the others.
inline bool all_answer(EtcdServers& servers, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    EtcdClient client(fmt::format("etcd://{}/ready", servers.endpoint(i)), 1'000'000);
    auto asking = client.asker();
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (std::holds_alternative<Error>(asking.ask(ReadPrefix{"none"}).what)) {
      if (!servers.usable() || std::chrono::steady_clock::now() > end) return false;
      client.pass();
    }
  }
  return true;
}

// Servers that answer. Tried again where a port was taken.
inline std::unique_ptr<EtcdServers> start_etcd(std::size_t count, const EtcdOptions& options = {}) {
  for (int i = 0; i < 5; ++i) {
    auto servers = std::make_unique<EtcdServers>(count, options);
    if (all_answer(*servers, count)) return servers;
  }
  ADD_FAILURE() << "etcd does not start: is the package etcd-server installed (scripts/bootstrap.sh)?";
  return std::make_unique<EtcdServers>(count, options);
}

}  // namespace vmem::cluster
