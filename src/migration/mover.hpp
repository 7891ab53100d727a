// The mover: the only writer of the page table. An actor: threads post requests and wait; step()
// advances them and calls the parts (parts.hpp), each of which does what is possible now. In
// production a thread calls step(); tests call it themselves, to script any interleaving, and so do
// replays (src/replay). step() waits for neither the GPU nor a tier; only the destructor does.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/log_limit.hpp"
#include "base/status.hpp"
#include "migration/parts.hpp"
#include "migration/request.hpp"
#include "tiers/tier.hpp"

namespace vmem::migration {

class Mover {
 public:
  explicit Mover(MoverConfig config);
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  void start();  // starts a thread that steps until stop
  void stop();

  // Any thread, from here to now_us. Posts the request, which lives on the caller's stack, and
  // waits for its result.
  Status call(Request& request);
  // Posts without waiting or allocating memory. The request must outlive its completion; after the
  // mover's end it is refused at once.
  void post(Request& request);
  // Wakes the mover if it sleeps.
  void poke();
  std::uint64_t hbm_bytes(int device) const { return parts_.devices[device].config.hbm_bytes; }
  // `bytes`, rounded up to whole pages of an undeclared region on `device`.
  std::uint64_t bytes_in_pages(int device, std::uint64_t bytes) const {
    return parts_.sizing.bytes_in_pages(device, bytes);
  }
  std::uint64_t shared_page_bytes(int device) const { return parts_.sizing.shared_page_bytes(device); }
  const Journal& journal() const { return parts_.core.journal; }
  bool evicts() const { return parts_.frames.evicts(); }                          // see HbmFrames
  bool tracks() const { return parts_.residency.tracks(); }                       // see Residency
  std::uint32_t all_resident() const { return parts_.residency.all_resident(); }  // see Residency
  std::uint64_t now_us() const { return parts_.core.now_us(); }

  // The mover's thread, or a test's. again: work is left; soon: poll for progress of the GPU or a
  // tier; later: retry at a low rate; sleep: nothing to do until poked.
  enum class Next { again, soon, later, sleep };
  Next step();
  // The same; without memory for it, puts off what no request asked for.
  Next step_or_wait() noexcept;

  // Between two steps, for tests and replays: the parts' own interfaces.
  MoverParts& parts() { return parts_; }

 private:
  // mover.cpp: the loop
  void run();
  std::optional<Status> advance(Request& request);
  void take_posted();
  void refuse_posted();
  void advance_requests();
  Status poll();
  void poll_failed(const Error& error);
  void record_step(trace::Recorder& to);
  void record_transfer(trace::Recorder& to, PageRef ref, const InFlight& transfer, bool changed) const;
  void finish_transfer(const tiers::Completion& completion);
  void store_failed(PageRef ref, const Error& error);
  Next next_step() const;

  MoverParts parts_;
  std::vector<tiers::Completion> completions_;
  std::deque<Request*> requests_;
  std::uint32_t poll_failures_ = 0;  // in a row
  LogLimit out_of_memory_;           // steps that ran out of memory

  // Posting and sleeping.
  std::atomic<Request*> posted_{nullptr};
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> poked_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> ended_{false};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace vmem::migration
