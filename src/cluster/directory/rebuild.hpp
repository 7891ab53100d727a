// After a takeover a home knows nothing of the pages: every participant reports what it has, range
// after range, and until each has or is no member any more, nothing is answered.
#pragma once

#include <array>
#include <functional>

#include "cluster/directory/home_pages.hpp"

namespace vmem::cluster::directory {

class Rebuild {
 public:
  explicit Rebuild(HomePages& pages) : pages_(pages) {}

  void begin(Places participants) { waits_for_ = participants; }
  void not_awaited(std::uint32_t place) { waits_for_ &= ~place_bit(place); }
  bool going_on() const noexcept { return waits_for_ != 0; }
  // Takes a report in if it is the next of this participant. Returns whether it was.
  bool take(std::uint32_t place, const Report& report);
  // Calls for the rest of the reports: now from `only`, or from all that is due.
  void send(std::uint64_t now_us, std::uint64_t resend_us,
            const std::function<void(std::uint32_t place, std::uint32_t from)>& to);
  void hurry(std::uint32_t place) { next_us_[place] = 0; }
  std::uint64_t due_us() const;

 private:
  HomePages& pages_;
  Places waits_for_ = 0;
  std::array<std::uint32_t, kMostParticipants> from_{};
  std::array<std::uint64_t, kMostParticipants> next_us_{};
};

}  // namespace vmem::cluster::directory
