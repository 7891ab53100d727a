#include "tiers/async/io_thread.hpp"

#include <sys/prctl.h>

#include <chrono>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/memory_reserve.hpp"

namespace vmem::tiers {
namespace {

constexpr std::chrono::seconds kLongestWait{1};  // a safety net against a lost wake-up

}  // namespace

IoThread::IoThread(Config config)
    : config_(std::move(config)),
      inbox_([this] { config_.queue->wake(); }),
      pages_(*config_.queue),
      thread_([this] { run(); }) {}

IoThread::~IoThread() {
  stopping_.store(true);
  config_.queue->wake();
  thread_.join();
}

void IoThread::run() {
  ::prctl(PR_SET_NAME, config_.name);
  MemoryReserve reserve;
  std::vector<IoResult> results;
  for (;;) {
    (void)inbox_.run();
    if (stopping_.load() && config_.ledger->idle()) return;
    (void)reserve.refill();
    pages_.send();
    results.clear();
    const auto waited = config_.queue->wait(results, kLongestWait);
    for (const IoResult& result : results) pages_.take(result);
    if (!waited) queue_failed(waited.error());
  }
}

void IoThread::queue_failed(const Error& error) {
  if (const auto failure = failures_.next(); failure.logged)
    VMEM_LOG_ERROR("{}: {} ({} such failures)", config_.failure, error.message, failure.count);
  pages_.queue_failed(error);
}

}  // namespace vmem::tiers
