#include "rdma/transport/stream/stream_lanes.hpp"

#include <sys/prctl.h>

#include <boost/asio/executor_work_guard.hpp>

#include "base/memory_reserve.hpp"

namespace vmem::rdma::stream {

void StreamLanes::start(std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    lanes_.push_back(std::make_unique<Context>(1));
    threads_.emplace_back([lane = lanes_.back().get()] { run(*lane); });
  }
}

void StreamLanes::stop() {
  for (const auto& lane : lanes_) lane->stop();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void StreamLanes::run(Context& lane) {
  ::prctl(PR_SET_NAME, "vmem-channel");
  const auto work = boost::asio::make_work_guard(lane);
  MemoryReserve reserve;
  // A handler that needs more memory than the reserve is abandoned; its peer misses a deadline.
  while (!lane.stopped()) {
    (void)ran_within_memory([&lane] {
      if (lane.run_one() != 0) lane.poll();
    });
    (void)reserve.refill();
  }
}

}  // namespace vmem::rdma::stream
