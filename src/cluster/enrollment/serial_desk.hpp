// Takes serials from the cluster's counter. A commit without an answer costs at most its numbers:
// nobody gets them.
#pragma once

#include <deque>
#include <optional>

#include "cluster/enrollment/enrollment_config.hpp"
#include "cluster/enrollment/enrollment_events.hpp"
#include "cluster/enrollment/registry_calls.hpp"
#include "cluster/enrollment/serial_counter.hpp"

namespace vmem::cluster {

class SerialDesk {
 public:
  SerialDesk(RegistryCalls& calls, const EnrollmentConfig& config, const Random& random)
      : calls_(calls), config_(config), backoff_(config, random) {}

  void take(Ticket ticket, std::uint64_t now_us);
  // Fails everything that waits.
  void close(const Error& why);
  // Appends the results since the last call.
  void poll(std::vector<EnrollmentEvent>& events);

  bool step(std::uint64_t now_us);
  std::uint64_t due_us() const;

 private:
  struct Want {
    Ticket ticket{};
    std::uint64_t deadline_us = 0;
  };
  bool expire(std::uint64_t now_us);
  void handle(const Reply& reply, std::uint64_t now_us);
  void commit(const SerialCounter& counter);
  void hand_out();
  void again(std::uint64_t now_us);

  RegistryCalls& calls_;
  const EnrollmentConfig& config_;
  Backoff backoff_;
  std::deque<Want> wants_;
  RegistryCall call_;
  std::uint64_t due_us_ = 0;
  // The commit in flight: serials first_ to first_ + count_ - 1. count_ 0: none
  std::uint64_t first_ = 0, count_ = 0;
  std::optional<Error> trouble_;
  std::vector<SerialTaken> results_;
};

}  // namespace vmem::cluster
