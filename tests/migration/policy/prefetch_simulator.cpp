#include "migration/policy/prefetch_simulator.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <set>

#include "migration/policy/cache_simulator.hpp"

namespace vmem::migration::testing {
namespace {

class Simulation {
 public:
  Simulation(Policy& policy, const Trace& trace, const Machine& machine)
      : policy_(policy), trace_(trace), machine_(machine) {}

  Timing run() {
    for (std::uint32_t i = 0; i < trace_.region_pages.size(); ++i)
      policy_.region_begins(
          {.id = {i + 1}, .pages = trace_.region_pages[i], .page_bytes = kPageBytes, .distant = machine_.distant});
    for (std::size_t i = 0; i < trace_.references.size(); ++i) {
      const Reference& reference = trace_.references[i];
      use({{reference.region}, reference.page}, reference.stream, i >= machine_.warm_up);
    }
    return timing_;
  }

 private:
  struct Flight {
    PageId page;
    double arrives;
    Cause cause;
  };

  void use(PageId page, std::uint16_t stream, bool counted) {
    policy_.used({.region = page.region, .first = page.index, .count = 1, .stream = stream});
    unused_.erase(page);
    busy_.push_back(page);
    if (busy_.size() > machine_.busy_pages + 1) busy_.pop_front();
    deliver();
    if (!resident_.contains(page)) wait_for(page, counted);
    prefetch();
    timing_.time += machine_.work_time;
    deliver();
  }

  void wait_for(PageId page, bool counted) {
    const double began = timing_.time;
    const auto in_flight = std::ranges::find(flights_, page, &Flight::page);
    const double arrives = in_flight != flights_.end() ? in_flight->arrives : fetch(page, Cause::use);
    timing_.time = std::max(timing_.time, arrives);
    deliver();
    unused_.erase(page);
    if (!counted) return;
    ++timing_.waits;
    timing_.waited += timing_.time - began;
  }

  void deliver() {
    while (!flights_.empty() && flights_.front().arrives <= timing_.time) {
      const Flight flight = flights_.front();
      flights_.pop_front();
      resident_.insert(flight.page);
      if (flight.cause == Cause::prefetch) unused_.insert(flight.page);
      policy_.page_arrived(flight.page, flight.cause);
    }
  }

  double fetch(PageId page, Cause cause) {
    if (resident_.size() + flights_.size() >= machine_.frames) evict();
    link_free_ = std::max(link_free_, timing_.time) + machine_.transfer_time;
    const double arrives = link_free_ + machine_.latency;
    flights_.push_back({page, arrives, cause});
    ++timing_.fetched;
    return arrives;
  }

  void evict() {
    for (int refusals = 0; refusals < 1000; ++refusals) {
      std::array<PageId, 1> victim;
      const VictimQuery query{.page_bytes = kPageBytes, .bytes_wanted = kPageBytes, .again = refusals > 0};
      if (policy_.victims(query, victim) == 0) return;
      if (std::ranges::find(busy_, victim[0]) != busy_.end()) continue;
      resident_.erase(victim[0]);
      timing_.wasted += unused_.erase(victim[0]);
      policy_.page_left(victim[0]);
      return;
    }
  }

  void prefetch() {
    const std::size_t room = machine_.in_flight_max - std::min<std::size_t>(flights_.size(), machine_.in_flight_max);
    std::array<PageId, 64> pages;
    const std::size_t count = policy_.prefetches({.bytes_room = room * kPageBytes}, pages);
    for (std::size_t i = 0; i < count; ++i) {
      timing_.asked_in_hbm += resident_.contains(pages[i]);
      const bool in_flight = std::ranges::find(flights_, pages[i], &Flight::page) != flights_.end();
      timing_.asked_in_flight += in_flight;
      ++timing_.prefetched;
      const bool dropped = machine_.drop_every && timing_.prefetched % machine_.drop_every == 0;
      if (!in_flight && !dropped) fetch(pages[i], Cause::prefetch);
    }
  }

  Policy& policy_;
  const Trace& trace_;
  const Machine machine_;
  Timing timing_;
  std::set<PageId> resident_, unused_;
  std::deque<Flight> flights_;  // in order of arrival
  std::deque<PageId> busy_;
  double link_free_ = 0;
};

}  // namespace

Timing simulate(Policy& policy, const Trace& trace, const Machine& machine) {
  return Simulation(policy, trace, machine).run();
}

}  // namespace vmem::migration::testing
