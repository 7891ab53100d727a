// What a mover did, as one number: the names of its driver calls, what it submitted to tiers, and
// the state of its pages. VMEM_TEST_TRACE=FILE appends one line per trace to FILE, so that two
// builds can be compared; with VMEM_TEST_TRACE_ALL=1 as well every event, to see where two traces
// part.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include "pagetable/region.hpp"
#include "tiers/tier.hpp"

namespace vmem::migration {

class CallTrace {
 public:
  explicit CallTrace(std::string name) : name_(std::move(name)) {
    if (const char* const path = std::getenv("VMEM_TEST_TRACE")) file_.open(path, std::ios::app);
    all_ = file_.is_open() && std::getenv("VMEM_TEST_TRACE_ALL") != nullptr;
  }
  ~CallTrace() {
    if (file_.is_open()) file_ << fmt::format("{}: {} events, {:016x}\n", name_, events_, hash_);
  }
  CallTrace(const CallTrace&) = delete;
  CallTrace& operator=(const CallTrace&) = delete;

  // Only of this thread: others, such as those that make slots, run at their own pace.
  void call(std::string_view function) {
    if (std::this_thread::get_id() == thread_) add(function);
  }
  void submitted(std::string_view tier, const tiers::Transfer& transfer) {
    add(fmt::format("{} {} {} {} {} {}{}{}{}", tier, int(transfer.direction), transfer.page.granule, transfer.version,
                    transfer.slot, transfer.bytes, transfer.watch ? " watch" : "",
                    transfer.if_changed ? " if changed" : "", transfer.compare_with ? " compare" : ""));
  }
  void state(const pagetable::Region& region) {
    for (std::uint32_t i = 0; i < region.page_count; ++i) {
      const pagetable::Page& page = region.pages[i];
      add(fmt::format("{} {} {} {} {} {} {} {}", region.granule_of(i), int(page.mapped), page.frame, page.standby(),
                      page.near, page.slot, page.version, page.slot_version));
    }
  }
  std::uint64_t hash() const { return hash_; }
  std::uint64_t events() const { return events_; }

 private:
  void add(std::string_view event) {
    ++events_;
    // FNV-1a.
    for (const char each : event) hash_ = (hash_ ^ static_cast<unsigned char>(each)) * 0x100000001b3;
    hash_ = (hash_ ^ '\n') * 0x100000001b3;
    if (all_) file_ << event << '\n';
  }

  const std::string name_;
  const std::thread::id thread_ = std::this_thread::get_id();
  std::ofstream file_;
  bool all_ = false;
  std::uint64_t hash_ = 0xcbf29ce484222325;
  std::uint64_t events_ = 0;
};

}  // namespace vmem::migration
