// Threads of a StreamTransport's payload channels: one lane each.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace vmem::rdma::stream {

class StreamLanes {
 public:
  using Context = boost::asio::io_context;
  ~StreamLanes() { stop(); }

  void start(std::uint32_t count);
  // Ends the threads. No channel of a lane may exist any more.
  void stop();
  // Where a channel runs: 0 and, without lanes, all on `main`.
  Context& of(std::size_t channel, Context& main) {
    return channel == 0 || lanes_.empty() ? main : *lanes_[channel - 1];
  }

 private:
  static void run(Context& lane);

  std::vector<std::unique_ptr<Context>> lanes_;
  std::vector<std::thread> threads_;
};

}  // namespace vmem::rdma::stream
