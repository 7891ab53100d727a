// When pages may be stored below host memory again after a store failed, or found no room.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.hpp"

namespace vmem::migration {

class StorePacing {
 public:
  // No stores now: one was refused or failed a short time ago.
  bool paused(std::uint64_t now_us) const { return now_us < paused_until_us_; }
  // Stores failed in a row: one at a time tests whether others would.
  bool probes() const { return failed_in_a_row_ != 0; }
  // They failed, but another may succeed: requests for room wait for it.
  bool may_recover(std::uint64_t now_us) const;
  // A tier that may have room did not answer a short time ago.
  bool away(std::uint64_t now_us) const { return now_us < away_until_us_; }
  const std::string& error() const { return error_; }  // of the last page that was not stored

  void stored();
  void failed(std::uint64_t now_us, const Error& error);
  void refused(std::uint64_t now_us, const Error& error);    // the tier has no slot for the page
  void timed_out(std::uint64_t now_us, const Error& error);  // no answer about a slot
  void answered() { away_until_us_ = 0; }
  // A slot was released, or a copy became redundant: a tier that was full is asked again.
  void room_came();

 private:
  std::uint64_t paused_until_us_ = 0, away_until_us_ = 0;
  std::uint32_t failed_in_a_row_ = 0;
  std::uint64_t failing_since_us_ = 0;
  std::string error_;
};

}  // namespace vmem::migration
