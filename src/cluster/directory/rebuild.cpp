#include "cluster/directory/rebuild.hpp"

#include <algorithm>

#include "cluster/directory/home_table.hpp"

namespace vmem::cluster::directory {

bool Rebuild::take(std::uint32_t place, const Report& report) {
  const bool awaited = (waits_for_ & place_bit(place)) != 0;
  if (!awaited || report.from != from_[place] || report.to <= report.from || report.to > pages_.size()) return false;
  for (const HaveRun& run : report.runs) {
    for (std::uint32_t page = run.pages.first; page < run.pages.end(); ++page) {
      if (run.have == Have::kept) pages_.add_keeper(page, place);
      if (run.have == Have::cached) pages_.add_cacher(page, place);
      if (run.have == Have::free) pages_.set_free(page);
    }
  }
  from_[place] = report.to;
  hurry(place);
  if (report.to == pages_.size()) not_awaited(place);
  return true;
}

void Rebuild::send(std::uint64_t now_us, std::uint64_t resend_us,
                   const std::function<void(std::uint32_t place, std::uint32_t from)>& to) {
  for_each_place(waits_for_, [&](std::uint32_t place) {
    if (now_us < next_us_[place]) return;
    next_us_[place] = now_us + resend_us;
    to(place, from_[place]);
  });
}

std::uint64_t Rebuild::due_us() const {
  std::uint64_t due_us = UINT64_MAX;
  for_each_place(waits_for_, [&](std::uint32_t place) { due_us = std::min(due_us, next_us_[place]); });
  return due_us;
}

}  // namespace vmem::cluster::directory
