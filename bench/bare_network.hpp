// Measures the network with bare messages between two processes, over as many connections as vmem
// has and with messages of its pages' size. To another machine with ucx_perftest; on this machine
// with that or with plain sockets, whichever is faster.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "bench/child_process.hpp"
#include "bench/socket_pair.hpp"
#include "bench/stream_limit.hpp"
#include "runtime/options/options.hpp"

namespace vmem::bench {

// How vmem reaches a node.
struct NodePath {
  std::string address;
  std::uint32_t connections = 1;
  SocketKind sockets = SocketKind::tcp;  // between two processes of this machine
};
// The nodes of --remote, reached as these options say.
std::vector<NodePath> node_paths(const Options& options);

class BareNetwork {
 public:
  // If the node is on another machine, ucx_perftest must run there. Errors: INVALID_OPTION.
  static Result<std::unique_ptr<BareNetwork>> create(NodePath path, std::uint64_t message_bytes);

  // GB/s of all connections together, over about `bytes`.
  Result<double> one_way(std::uint64_t bytes) const;
  Result<double> both_ways(std::uint64_t bytes) const;
  // As one_way(), but between memory of `bytes` on both sides, as pages lie there, with plain
  // sockets. one_way() reads and writes one message's memory again and again, which stays in the
  // processors' caches. REQUIRES: the node is on this machine.
  Result<double> one_way_of_pages(std::uint64_t bytes) const;
  // With endpoints that can fail alone, as the tier needs them. REQUIRES: has_perftest().
  Result<double> failing_alone(std::uint64_t bytes) const;

  static bool has_perftest();
  // "ucx_perftest ucp_am_bw, 2 MiB, 4 connections between two processes here"
  std::string name() const;
  std::string name_of_pages() const;

 private:
  enum class Endpoints { ordinary, failing_alone };
  enum class By { perftest, sockets };
  BareNetwork() = default;
  Result<By> faster_of_both() const;
  Result<double> measure(std::uint64_t bytes, std::uint32_t pairs) const;
  Result<double> perftest(std::uint64_t bytes, std::uint32_t pairs, Endpoints endpoints) const;
  Result<double> rate_of_pair(std::uint16_t port, std::uint64_t messages, Endpoints endpoints) const;
  Result<std::string> client_output(std::uint16_t port, std::uint64_t messages, Endpoints endpoints) const;
  Result<double> sockets(std::uint64_t bytes, std::uint32_t pairs, std::uint64_t memory_bytes) const;

  NodePath path_;
  std::string host_;
  bool here_ = true;  // the node is on this machine
  By by_ = By::sockets;
  std::uint64_t message_bytes_ = 0;
  ChildProcess::Environment environment_;
};

// Limit for streaming over a chain that continues on other nodes, where the network is the
// bottleneck: all nodes at once.
class NetworkLimit final : public StreamLimit {
 public:
  // `most_bytes`: transferred per sample and node.
  NetworkLimit(std::vector<NodePath> nodes, std::uint64_t most_bytes)
      : nodes_(std::move(nodes)), most_bytes_(most_bytes) {}
  Status prepare(std::uint64_t page_bytes, std::uint64_t bytes) override;
  Result<double> rate(StreamMode mode) override;
  std::string name(StreamMode mode) const override;
  std::uint64_t crossed(const Traffic& traffic, StreamMode mode) const override {
    const std::uint64_t in = traffic.remote_in_bytes;
    return mode == StreamMode::read_write ? in + traffic.remote_out_bytes : in;
  }

 private:
  std::vector<NodePath> nodes_;
  std::vector<std::unique_ptr<BareNetwork>> networks_;  // since prepare()
  std::uint64_t most_bytes_, bytes_ = 0;
};

}  // namespace vmem::bench
