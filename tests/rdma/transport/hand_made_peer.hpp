// A peer that authenticates like a node and then sends what the test tells it to.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "rdma/transport/stream_node.hpp"
#include "rdma/trust/admission.hpp"

namespace vmem::rdma {

class HandMadePeer {
 public:
  // Uses TLS, or a Unix socket if `keyring` is null. Opens the first connection of a link to
  // `address`; listens if that is empty.
  explicit HandMadePeer(const KeyringRef& keyring, const std::string& address = "", std::uint64_t id = 77) {
    Admission::Config config;
    config.self = {NodeId{id}, Incarnation{1}};
    config.parameters = kParameters;
    if (keyring) config.tls = *TlsContext::create(crypto_, keyring);
    config.crypto = crypto_.get();
    config.clock = &clock_;
    if (address.empty()) config.listen = "127.0.0.1:0";
    admission_ = *Admission::create(context_, config, [this](Admission::SetUp outcome) {
      EXPECT_FALSE(outcome.failed);
      if (outcome.key == kFirst) link_ = outcome.theirs.link;
      streams_[outcome.key == 0 ? kFirst + outcome.theirs.index : outcome.key] = std::move(outcome.stream);
    });
    if (address.empty()) return;
    address_ = *SocketAddress::parse(address);
    connect(kFirst, 0, 0);
  }
  const std::string& address() const noexcept { return admission_->address(); }

  // Opens another connection, which claims this link or another one.
  void join(std::uint16_t index) { connect(kFirst + index, link_, index); }
  void join_another_link(std::uint16_t index) { connect(kFirst + index, link_ + 1, index); }
  // Whether connection `index` is established. Advances all connections.
  bool connected(std::uint16_t index = 0) {
    context_.restart();  // a context without work stops
    context_.poll();
    return streams_.contains(kFirst + index);
  }
  void say(std::string_view bytes, std::uint16_t index = 0) {
    const ConstBytes pieces[] = {std::as_bytes(std::span(bytes))};
    EXPECT_EQ(*stream(index).write(pieces), bytes.size());
    EXPECT_TRUE(*stream(index).flush());
  }
  // Whether the node has closed the connection. Drops the bytes it sent before.
  bool ended(std::uint16_t index = 0) {
    std::byte any{};
    for (;;) {
      const auto got = stream(index).read(Bytes(&any, 1));
      if (!got) return true;
      if (*got == 0) return false;
    }
  }
  void leave() {
    for (auto& [key, each] : streams_) each.shut();
  }

 private:
  static constexpr std::uint64_t kFirst = 1;
  void connect(std::uint64_t key, std::uint64_t link, std::uint16_t index) {
    admission_->connect(key, address_, link, index, clock_.now_us() + 20 * kSecondUs);
  }
  ByteStream& stream(std::uint16_t index) { return streams_.at(kFirst + index); }

  CryptoRef crypto_ = *Crypto::load();
  SteadyClock clock_;
  SocketAddress address_;  // the node's
  boost::asio::io_context context_;
  std::unique_ptr<Admission> admission_;
  std::map<std::uint64_t, ByteStream> streams_;
  std::uint64_t link_ = 0;
};

}  // namespace vmem::rdma
