// GPUs and their driver in virtual time, for one thread. Nothing is computed and no memory exists:
// work ends at the time that its queue and its duration give, and calls of the driver take the time
// that they are said to cost. So a mover runs on it as it is, and the same every time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "gpu/driver.hpp"
#include "replay/timeline.hpp"

namespace vmem::replay {

// What calls of the driver cost the thread that makes them, in ns, in programs beyond HBM on an
// H200 (docs/decisions/0112).
struct CallCosts {
  std::uint64_t map = 3'000, set_access = 40'000, unmap = 45'000;
  // While pages are copied out, in pieces (docs/decisions/0071).
  std::uint64_t set_access_beside_stores = 130'000;
  std::uint64_t create = 30'000, release = 20'000;
  std::uint64_t event = 1'000;  // also of a wait, and of a query
};

// The link between a GPU and host memory, or another GPU.
struct LinkRates {
  std::uint64_t in_bytes_per_s = 55'300'000'000, out_bytes_per_s = 55'300'000'000;
  // Of each direction's rate, while the other one is busy.
  double both = 0.92;
  std::uint64_t start_ns = 8'000;  // of a copy
  // A copy out pauses so long after each piece.
  std::uint64_t pause_ns = 6'000, piece_bytes = std::uint64_t{8} << 20;
};

inline constexpr LinkRates kNvLink{.in_bytes_per_s = 390'000'000'000,
                                   .out_bytes_per_s = 390'000'000'000,
                                   .both = 1,
                                   .start_ns = 8'000,
                                   .pause_ns = 0,
                                   .piece_bytes = std::uint64_t{8} << 20};

class VirtualGpu {
 public:
  struct Shape {
    int devices = 1;
    std::uint64_t hbm_bytes = 0;  // of each
    CallCosts costs;
    LinkRates link, peer_link = kNvLink;
    Timeline* timeline = nullptr;  // filled with work and copies; null: not wanted
  };
  // One at a time in a thread.
  explicit VirtualGpu(const Shape& shape);
  ~VirtualGpu();
  VirtualGpu(const VirtualGpu&) = delete;
  VirtualGpu& operator=(const VirtualGpu&) = delete;

  std::shared_ptr<const gpu::Driver> driver() const { return driver_; }
  // The clock of whoever acts, the program or the mover; they set it when they take turns.
  std::uint64_t now_ns() const { return now_ns_; }
  void set_now(std::uint64_t now_ns) { now_ns_ = now_ns; }
  void spend(std::uint64_t ns) { now_ns_ += ns; }

  CUstream create_stream(int device);
  std::uint64_t run(CUstream stream, std::uint64_t takes_ns);  // queues work; returns when it ends
  std::uint64_t end_of(CUstream stream) const;                 // of what is queued so far
  void hold_until(CUstream stream, std::uint64_t at_ns);       // what is queued later begins then

  enum class Direction : std::uint8_t { in, out };
  enum class Far : std::uint8_t { host, peer };  // the other end of a link
  // A copy over a link of the device, once the events have happened. Its end is a new event; give
  // it back with `forget`.
  CUevent copy(int device, Direction direction, std::uint64_t bytes, std::span<const CUevent> after,
               Far far = Far::host);
  // What takes `takes_ns` once the events have happened, beside everything else.
  CUevent beside(std::uint64_t takes_ns, std::span<const CUevent> after);
  std::uint64_t time_of(CUevent event) const;
  void forget(CUevent event);
  std::uint64_t busy_ns(int device, Direction direction, Far far = Far::host) const {
    return devices_[std::size_t(device)].links[std::size_t(far)][std::size_t(direction)].busy_ns;
  }

 private:
  struct Calls;  // the driver's functions
  struct Stream {
    std::uint32_t number = 0;
    int device = 0;
    std::uint64_t end_ns = 0;
  };
  struct Event {
    std::uint64_t at_ns = 0;
  };
  struct Link {
    std::uint64_t end_ns = 0, busy_ns = 0;
  };
  struct Device {
    Stream default_stream;
    std::array<std::array<Link, 2>, 2> links;  // by Far and Direction
  };
  Stream& stream_of(CUstream handle);
  CUevent new_event(std::uint64_t at_ns);
  void note(const Work& work) {
    if (shape_.timeline != nullptr && work.end_ns > work.begin_ns) shape_.timeline->push_back(work);
  }
  std::uint64_t after_all(std::span<const CUevent> events) const;

  const Shape shape_;
  std::shared_ptr<const gpu::Driver> driver_;
  std::uint64_t now_ns_ = 1;
  std::deque<Device> devices_;
  std::deque<Stream> streams_;
  std::deque<Event> events_;
  std::vector<Event*> spare_events_;
  std::vector<int> contexts_;  // pushed, of devices
  int current_ = 0;
  std::uint64_t next_address_ = std::uint64_t{0x7000} << 32;
  std::uint64_t next_handle_ = 1;
};

}  // namespace vmem::replay
