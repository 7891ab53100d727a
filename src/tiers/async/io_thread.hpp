// The thread of a tier that moves pages to and from files. It keeps an IoQueue busy, and runs what
// other threads post to it. It owns the tier's records of transfers in flight.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "base/log_limit.hpp"
#include "tiers/async/inbox.hpp"
#include "tiers/async/page_io.hpp"
#include "tiers/async/transfer_ledger.hpp"

namespace vmem::tiers {

class IoThread {
 public:
  struct Config {
    const char* name;     // of the thread, at most 15 characters
    const char* failure;  // logged with the queue's error when the queue fails
    std::unique_ptr<IoQueue> queue;
    TransferLedger* ledger;  // outlives this
  };
  explicit IoThread(Config config);
  // Joins the thread, which runs until no transfer is in flight: call TransferLedger::finish first.
  ~IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  // Any thread. Every task belongs to a transfer in flight.
  void post(Inbox::Task task) { inbox_.post(std::move(task)); }
  std::string describe() const { return config_.queue->describe(); }
  // The thread only.
  PageIo& pages() { return pages_; }

 private:
  void run();
  void queue_failed(const Error& error);

  const Config config_;
  Inbox inbox_;
  std::atomic<bool> stopping_{false};
  // The thread only.
  PageIo pages_;
  LogLimit failures_;

  std::thread thread_;
};

}  // namespace vmem::tiers
