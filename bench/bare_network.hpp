// What the network gives to bare messages between two processes: by UCX's own test, ucx_perftest, where it is installed, under the settings
// of UCX that the remote tier uses; else by a loop over a plain TCP socket.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/status.hpp"
#include "bench/child_process.hpp"
#include "bench/stream_limit.hpp"

namespace vmem::bench {

class BareNetwork {
 public:
  // On the way to the node at `address`, in messages of so many bytes. If that is another machine, somebody has to run ucx_perftest
  // there. Errors: INVALID_OPTION.
  static Result<std::unique_ptr<BareNetwork>> create(const std::string& address, std::uint64_t message_bytes);

  // GB/s over about so many bytes.
  Result<double> one_way(std::uint64_t bytes) const { return measure(bytes, 1, false); }
  Result<double> both_ways(std::uint64_t bytes) const;
  // Over several connections at once, each between two processes. REQUIRES: is_here.
  Result<double> one_way_over(std::uint64_t bytes, std::uint32_t connections) const {
    return measure(bytes / connections, static_cast<int>(connections), false);
  }
  // With endpoints that can fail alone, as the tier needs them; nothing without ucx_perftest.
  Result<double> failing_alone(std::uint64_t bytes) const { return measure(bytes, 1, true); }

  static bool has_perftest();
  bool is_here() const { return here_; }  // the node is on this machine
  std::string name() const;               // "ucx_perftest ucp_am_bw, 2 MiB, UCX_TLS=^sm"

 private:
  BareNetwork() = default;
  Result<double> measure(std::uint64_t bytes, int pairs, bool alone) const;
  Result<double> perftest(std::uint64_t bytes, int pairs, bool alone) const;
  Result<double> rate_of_pair(std::uint64_t messages, bool alone) const;
  Result<std::string> client_output(std::uint16_t port, std::uint64_t messages, bool alone) const;
  Result<double> sockets(std::uint64_t bytes, int pairs) const;

  std::string host_;
  bool here_ = true;
  std::uint64_t message_bytes_ = 0;
  ChildProcess::Environment environment_;
};

// Of streaming over a chain that goes on to other nodes: the network is what there is to be waited for.
class NetworkLimit final : public StreamLimit {
 public:
  // `bytes`: of a sample.
  NetworkLimit(std::unique_ptr<BareNetwork> network, std::uint64_t bytes)
      : network_(std::move(network)), bytes_(bytes) {}
  Result<double> rate(StreamMode mode) override {
    return mode == StreamMode::read_write ? network_->both_ways(bytes_) : network_->one_way(bytes_);
  }
  std::string name(StreamMode mode) const override {
    return network_->name() + (mode == StreamMode::read_write ? ", both ways" : "");
  }

 private:
  std::unique_ptr<BareNetwork> network_;
  std::uint64_t bytes_;
};

}  // namespace vmem::bench
