// What a thread does work for, for as long as there is some, and sleeps in between.
#pragma once

#include <cstdint>

namespace vmem::rdma {

class Progressable {
 public:
  virtual ~Progressable() = default;
  // Does what can be done now; whether that was something.
  virtual bool progress() = 0;
  // Until there may be something to do, or most_us of real time have passed.
  virtual void idle(std::uint64_t most_us) = 0;
  // Ends the idle() under way, or the next one. Any thread.
  virtual void wake() noexcept = 0;
};

}  // namespace vmem::rdma
