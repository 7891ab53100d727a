#include "runtime/cluster/mover_pages.hpp"

#include <utility>

#include "base/log.hpp"

namespace vmem::runtime {

using migration::PageRun;
using rdma::wire::Answer;
using sharing::LentPage;
using sharing::SharedPage;

MoverPages::MoverPages(const Parts& parts, Config config)
    : parts_(parts), config_(config), workers_("vmem-lend", config.workers, [](tiers::Inbox::Task task) { task(); }) {}

void MoverPages::add(pagetable::Serial serial, Shared shared) {
  const std::lock_guard lock(mutex_);
  regions_.insert_or_assign(serial, Entry{.shared = std::move(shared)});
}

void MoverPages::remove(pagetable::Serial serial) {
  std::unique_lock lock(mutex_);
  const auto found = regions_.find(serial);
  if (found == regions_.end()) return;
  found->second.leaving = true;
  all_returned_.wait(lock, [&] { return found->second.lent == 0; });
  regions_.erase(found);
}

bool MoverPages::may_read(pagetable::Serial serial, const std::string& tenant) const {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(serial);
  return found != regions_.end() && !found->second.leaving && found->second.shared.tenant == tenant;
}

void MoverPages::lend(const SharedPage& page, Lent lent) {
  Shared shared;
  {
    const std::lock_guard lock(mutex_);
    const auto found = regions_.find(page.serial);
    const bool there = found != regions_.end() && !found->second.leaving &&
                       page.bytes == found->second.shared.page_bytes &&
                       page.page < found->second.shared.region->page_count;
    if (there) {
      ++found->second.lent;
      shared = found->second.shared;
    }
  }
  if (shared.region == nullptr) return lent(std::unexpected(Answer::unknown));
  // Without memory for it, the other node asks again.
  auto answer = std::make_shared<Answered>(std::unexpected(Answer::again));
  workers_.post([this, page, shared = std::move(shared), answer](std::uint32_t) { *answer = prepare(page, shared); },
                [this, serial = page.serial, lent = std::move(lent), answer](tiers::Workers::Ended) mutable {
                  if (!*answer) returned(serial);
                  lent(std::move(*answer));
                });
}

void MoverPages::returned(pagetable::Serial serial) {
  const std::lock_guard lock(mutex_);
  --regions_.at(serial).lent;
  all_returned_.notify_all();
}

// ---- the workers ----

MoverPages::Answered MoverPages::prepare(const SharedPage& page, const Shared& shared) {
  migration::OpenPageRequest open;
  open.run = {shared.region, page.page, 1};
  open.only_here = true;
  if (const Status opened = parts_.mover.call(open); !opened) {
    VMEM_LOG_DEBUG("{} was asked for, and cannot be read here: {}", words(page), opened.error().message);
    return std::unexpected(Answer::failed);
  }
  if (open.absent) return std::unexpected(Answer::unknown);
  if (open.host != nullptr) return in_host(page, shared, open.host);
  Answered answer = std::unexpected(Answer::unknown);  // never written: nobody is sent here for it
  if (open.device_window != 0) answer = in_hbm(page, shared, open.device_window);
  close(open.run);
  return answer;
}

// The page does not move until it is closed.
MoverPages::Answered MoverPages::in_host(const SharedPage& page, const Shared& shared, const std::byte* host) {
  const PageRun run{shared.region, page.page, 1};
  return sealed(page, shared, {host, page.bytes}, [this, run, serial = page.serial] {
    workers_.post([this, run](std::uint32_t) { close(run); },
                  [this, serial](tiers::Workers::Ended) { returned(serial); });
  });
}

MoverPages::Answered MoverPages::in_hbm(const SharedPage& page, const Shared& shared, CUdeviceptr window) {
  {
    const std::lock_guard lock(mutex_);
    if (copied_bytes_ + page.bytes > config_.most_copied_bytes && copied_bytes_ != 0)
      return std::unexpected(Answer::again);
    copied_bytes_ += page.bytes;
  }
  // Gives the budget back with the copy.
  const auto free = [this, bytes = page.bytes](std::byte* copy) {
    delete[] copy;
    const std::lock_guard lock(mutex_);
    copied_bytes_ -= bytes;
  };
  std::shared_ptr<std::byte[]> copy(new (std::nothrow) std::byte[page.bytes], free);
  if (copy == nullptr) return std::unexpected(Answer::again);
  Device& device = parts_.devices[std::size_t(shared.region->device)];
  if (const Status copied = copy_window(device, window, copy.get(), page.bytes, WindowCopy::to_host); !copied) {
    VMEM_LOG_DEBUG("{} was asked for, and cannot be copied: {}", words(page), copied.error().message);
    return std::unexpected(Answer::failed);
  }
  const rdma::ConstBytes bytes{copy.get(), page.bytes};
  return sealed(page, shared, bytes, [this, copy = std::move(copy), serial = page.serial]() mutable {
    copy.reset();
    returned(serial);
  });
}

MoverPages::Answered MoverPages::sealed(const SharedPage& page, const Shared& shared, rdma::ConstBytes bytes,
                                        std::move_only_function<void()> give_back) const {
  return LentPage{.bytes = bytes,
                  .tag = shared.key->tag(bytes, page),
                  .seal = tiers::seal(bytes, page.identity()),
                  .give_back = std::move(give_back)};
}

void MoverPages::close(const PageRun& run) {
  migration::ClosePageRequest request;
  request.run = run;
  if (const Status closed = parts_.mover.call(request); !closed)
    VMEM_LOG_DEBUG("a page that was sent to another node is not closed: {}", closed.error().message);
}

}  // namespace vmem::runtime
