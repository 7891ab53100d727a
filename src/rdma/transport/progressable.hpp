// Work for a thread that runs while there is some and sleeps in between.
#pragma once

#include <cstdint>

namespace vmem::rdma {

class Progressable {
 public:
  virtual ~Progressable() = default;
  // Does all work that is possible now; false if there was none.
  virtual bool progress() = 0;
  // Sleeps until there may be work, for at most most_us of real time.
  virtual void idle(std::uint64_t most_us) = 0;
  // Ends the current idle(), or the next one. Any thread.
  virtual void wake() noexcept = 0;
};

}  // namespace vmem::rdma
