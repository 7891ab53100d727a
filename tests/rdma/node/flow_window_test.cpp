// The window on its own, and on simulated paths: borrowers that ask one lender for pages, whose
// link sends one page after the other.
#include "rdma/node/flow_window.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <queue>
#include <random>
#include <vector>

namespace vmem::rdma {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20, kPage = 2 * kMiB, kMost = 1024 * kMiB;

// Delivers a page that was begun `delay_us` before.
void deliver(FlowWindow& window, std::uint64_t& now_us, std::uint64_t delay_us) {
  const auto begun = window.begin(kPage, now_us);
  now_us += delay_us;
  window.delivered(begun, now_us);
}

TEST(FlowWindow, TheFirstPageGoesAlone) {
  FlowWindow window(kMost);
  std::uint64_t now_us = 1000;
  ASSERT_TRUE(window.has_room(kPage, now_us));
  const auto first = window.begin(kPage, now_us);
  EXPECT_FALSE(window.has_room(kPage, now_us));
  window.delivered(first, now_us += 500);
  EXPECT_EQ(window.least_delay_us(), 500u);
  EXPECT_NEAR(window.bytes_per_us(), double(kPage) / 500, 1);
  (void)window.begin(kPage, now_us);
  EXPECT_TRUE(window.has_room(kPage, now_us)) << "one is on its way, and one waits behind it";
}

TEST(FlowWindow, AFastPathHasAsMuchInFlightAsItDeliversInTheLeastQueue) {
  const auto in_flight = [](std::uint64_t least_queue_us) {
    FlowWindow window(kMost, least_queue_us);
    std::uint64_t now_us = 0;
    for (int i = 0; i < 5; ++i) deliver(window, now_us, 500);
    while (window.has_room(kPage, now_us)) (void)window.begin(kPage, now_us);
    return window.in_flight_bytes() / kPage;
  };
  EXPECT_LE(in_flight(0), 3u);
  EXPECT_GE(in_flight(4'000), 8u) << "4 ms of a page each 500 us";
  EXPECT_LE(in_flight(4'000), 11u);
}

TEST(FlowWindow, WhatFailedSaysNothingAboutThePath) {
  FlowWindow window(kMost);
  std::uint64_t now_us = 0;
  deliver(window, now_us, 1000);
  const auto begun = window.begin(kPage, now_us);
  window.failed(begun);
  EXPECT_EQ(window.in_flight_bytes(), 0u);
  EXPECT_EQ(window.least_delay_us(), 1000u);
}

TEST(FlowWindow, NoMoreThanTheMostIsInFlightButOnePageAlways) {
  FlowWindow window(kPage / 2);
  std::uint64_t now_us = 0;
  for (int i = 0; i < 5; ++i) deliver(window, now_us, 1000);
  EXPECT_TRUE(window.has_room(kPage, now_us));
  (void)window.begin(kPage, now_us);
  EXPECT_FALSE(window.has_room(kPage, now_us));
}

TEST(FlowWindow, TheLeastDelayIsMeasuredAgainWithPagesThatGoAlone) {
  FlowWindow window(kMost);
  std::uint64_t now_us = 0;
  deliver(window, now_us, 100);
  deliver(window, now_us, 11'000'000);  // the path has become another one
  EXPECT_EQ(window.least_delay_us(), 100u);
  const auto alone = window.begin(kPage, now_us);
  EXPECT_FALSE(window.has_room(kPage, now_us)) << "it is measured now";
  window.delivered(alone, now_us += 400);
  deliver(window, now_us, 300);
  EXPECT_EQ(window.least_delay_us(), 300u);
}

struct Path {
  double bytes_per_us = 0;
  double round_trip_us = 0;
  double jitter = 0;  // of the round trip
  std::uint64_t page_bytes = kPage;
};

struct Figures {
  double utilisation = 0;
  double fairness = 0;                     // Jain's index: 1 is equal shares
  double mean_queue = 0, most_queued = 0;  // pages that wait for the link
};

// Borrowers with endless loads. The link's rate may change at half of the time.
class Simulation {
 public:
  Simulation(Path path, std::size_t borrowers, std::uint64_t seed)
      : path_(path), random_(seed), windows_(borrowers, FlowWindow(kMost)), loaded_(borrowers) {}

  // Figures of the time from `from_us` to `to_us`.
  Figures run(double from_us, double to_us) {
    queued_ = pages_ = 0;
    Figures figures;
    std::ranges::fill(loaded_, 0);
    if (now_us_ == 0) begin_all(from_us);
    while (!events_.empty() && events_.top().at_us < to_us) {
      const Event event = events_.top();
      events_.pop();
      now_us_ = event.at_us;
      const bool counts = now_us_ >= from_us;
      if (event.kind == Event::Kind::asked) {
        const double waits = std::max(link_free_us_ - now_us_, 0.0) * path_.bytes_per_us / double(path_.page_bytes);
        if (counts) {
          queued_ += waits;
          ++pages_;
          figures.most_queued = std::max(figures.most_queued, waits);
        }
        link_free_us_ = std::max(link_free_us_, now_us_) + double(path_.page_bytes) / path_.bytes_per_us;
        push(Event::Kind::arrives, link_free_us_ + half_trip(), event);
        continue;
      }
      if (event.kind == Event::Kind::arrives) {
        windows_[event.borrower].delivered(event.begun, time());
        if (counts) loaded_[event.borrower] += double(path_.page_bytes);
      }
      ask(event.borrower);
    }
    const double sum = std::accumulate(loaded_.begin(), loaded_.end(), 0.0);
    const double squares = std::inner_product(loaded_.begin(), loaded_.end(), loaded_.begin(), 0.0);
    figures.utilisation = sum / (path_.bytes_per_us * (to_us - from_us));
    figures.fairness = sum * sum / (double(loaded_.size()) * squares);
    figures.mean_queue = queued_ / std::max(pages_, 1.0);
    return figures;
  }
  void set_rate(double bytes_per_us) { path_.bytes_per_us = bytes_per_us; }
  std::uint64_t in_flight(std::size_t borrower) const { return windows_[borrower].in_flight_bytes(); }

 private:
  struct Event {
    enum class Kind { begins, asked, arrives };
    double at_us = 0;
    Kind kind = Kind::begins;
    std::size_t borrower = 0;
    FlowWindow::Begun begun;
    bool operator<(const Event& other) const { return at_us > other.at_us; }
  };

  double uniform() { return double(random_() >> 11) * 0x1p-53; }
  double half_trip() { return path_.round_trip_us / 2 * (1 + path_.jitter * uniform()); }
  std::uint64_t time() const { return static_cast<std::uint64_t>(now_us_); }
  void push(Event::Kind kind, double at_us, Event event) {
    event.kind = kind;
    event.at_us = at_us;
    events_.push(event);
  }
  void begin_all(double within_us) {
    for (std::size_t i = 0; i < windows_.size(); ++i)
      events_.push({.at_us = 1 + uniform() * within_us / 4, .borrower = i, .begun = {}});
  }
  void ask(std::size_t borrower) {
    FlowWindow& window = windows_[borrower];
    while (window.has_room(path_.page_bytes, time())) {
      const auto begun = window.begin(path_.page_bytes, time());
      push(Event::Kind::asked, now_us_ + half_trip(), {.borrower = borrower, .begun = begun});
    }
  }

  Path path_;
  std::mt19937_64 random_;
  std::vector<FlowWindow> windows_;
  std::vector<double> loaded_;
  std::priority_queue<Event> events_;
  double now_us_ = 0, link_free_us_ = 0, queued_ = 0, pages_ = 0;
};

// 10 MB/s to 10 GB/s, 20 µs to 50 ms, pages of 2 to 16 MiB, 1 to 5 borrowers.
TEST(FlowWindowOnALink, ItIsFullItsQueueIsShortAndSharesAreEqual) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    std::mt19937_64 random(seed);
    const auto between = [&](double least, double most) {
      return std::exp(std::log(least) + (std::log(most) - std::log(least)) * double(random() >> 11) * 0x1p-53);
    };
    const Path path{.bytes_per_us = between(10, 10'000),
                    .round_trip_us = between(20, 50'000),
                    .jitter = 0.05,
                    .page_bytes = kPage << random() % 4};
    const std::size_t borrowers = 1 + random() % 5;
    const double page_us = double(path.page_bytes) / path.bytes_per_us;
    const double warm_us = std::max(30e6, 200 * page_us);
    Simulation simulation(path, borrowers, seed);
    const Figures figures = simulation.run(warm_us, 3 * warm_us);
    const double on_path = path.round_trip_us / page_us;  // pages that the path itself holds
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << path.bytes_per_us << " MB/s, " << path.round_trip_us
                                      << " us, pages of " << path.page_bytes / kMiB << " MiB, " << borrowers
                                      << " borrowers");
    EXPECT_GE(figures.utilisation, 0.95);
    EXPECT_GE(figures.fairness, 0.95);
    EXPECT_LE(figures.mean_queue, 4 * double(borrowers) + on_path / 4);
    EXPECT_LE(figures.most_queued, 7 * double(borrowers) + on_path);
  }
}

TEST(FlowWindowOnALink, ASlowerPathSoonHoldsLess) {
  Simulation simulation({.bytes_per_us = 1000, .round_trip_us = 40'000}, 1, 1);
  (void)simulation.run(5e6, 9e6);
  const std::uint64_t before = simulation.in_flight(0);
  EXPECT_GT(before, 15 * kPage) << "the path holds 19 pages";
  simulation.set_rate(50);
  const Figures slow = simulation.run(10.5e6, 14.5e6);
  EXPECT_LE(simulation.in_flight(0), 5 * kPage) << "it holds one page, and its rate is a twentieth";
  EXPECT_GE(slow.utilisation, 0.95);
  simulation.set_rate(1000);
  const Figures fast = simulation.run(18e6, 22e6);
  EXPECT_GE(fast.utilisation, 0.9) << "and with its rate the window comes back";
}

}  // namespace
}  // namespace vmem::rdma
