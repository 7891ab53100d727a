#include "runtime/cluster/page_shelf.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "base/log.hpp"

namespace vmem::runtime {

using namespace cluster::directory;  // NOLINT(google-build-using-namespace): its events and runs
using rdma::wire::Answer;
using sharing::LentPage;
using sharing::SharedPage;

namespace {

constexpr std::uint64_t kRetiredUs = 10'000'000;  // without use

pagetable::Serial page_serial(Serial serial) { return pagetable::Serial{static_cast<std::uint64_t>(serial)}; }

template <class Use>
void each_page(const Runs& runs, Use&& use) {
  for (const Run& run : runs)
    for (std::uint64_t page = run.first; page < run.end(); ++page) use(std::uint32_t(page));
}

}  // namespace

// How much memory copies take. Lent copies give theirs back on any thread.
class PageShelf::Budget {
 public:
  explicit Budget(std::uint64_t most) : most_(most) {}
  bool take(std::uint64_t bytes) {
    std::uint64_t now = bytes_.load(std::memory_order_relaxed);
    do {
      if (bytes > most_ - now) return false;
    } while (!bytes_.compare_exchange_weak(now, now + bytes, std::memory_order_relaxed));
    pages_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  void put(std::uint64_t bytes) {
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    pages_.fetch_sub(1, std::memory_order_relaxed);
  }
  Usage usage() const {
    return {.pages = pages_.load(std::memory_order_relaxed), .bytes = bytes_.load(std::memory_order_relaxed)};
  }

 private:
  const std::uint64_t most_;
  std::atomic<std::uint64_t> bytes_ = 0, pages_ = 0;
};

// A page's bytes, mapped for it alone.
struct PageShelf::Memory {
  Memory(std::shared_ptr<Budget> of, std::byte* at, std::uint64_t size)
      : budget(std::move(of)), bytes(at), count(size) {}
  ~Memory() {
    (void)::munmap(bytes, count);
    budget->put(count);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  static std::shared_ptr<Memory> make(const std::shared_ptr<Budget>& budget, std::uint64_t size) {
    if (!budget->take(size)) return nullptr;
    std::byte* const at = map(size);
    if (at != nullptr) return std::make_shared<Memory>(budget, at, size);
    budget->put(size);
    return nullptr;
  }
  // In huge pages where a page has some. Null: there is no memory.
  static std::byte* map(std::uint64_t size) {
    constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
    const std::uint64_t more = size % kHugePage == 0 ? kHugePage : 0;
    void* const mapped = ::mmap(nullptr, size + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    auto* const first = static_cast<std::byte*>(mapped);
    if (more == 0) return first;
    const std::uint64_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(first) % kHugePage) % kHugePage;
    if (before != 0) (void)::munmap(first, before);
    if (before != more) (void)::munmap(first + before + size, more - before);
    (void)::madvise(first + before, size, MADV_HUGEPAGE);
    return first + before;
  }

  const std::shared_ptr<Budget> budget;
  std::byte* const bytes;
  const std::uint64_t count;
};

PageShelf::PageShelf(rdma::Node& node, Config config)
    : node_(node), config_(config), budget_(std::make_shared<Budget>(config.bytes)) {
  node_.add(*this);
}

void PageShelf::begin(DirectoryService& directory, sharing::SharedTier& tier) {
  directory_ = &directory;
  tier_ = &tier;
}

void PageShelf::quiesce() {
  stopping_ = true;
  if (!orders_.empty()) return;
  regions_.clear();
  while (!retired_.empty()) drop(retired_.begin());
}

PageShelf::Usage PageShelf::usage() const {
  const Usage all = budget_->usage();
  const std::uint64_t pages = retired_pages_.load(), bytes = retired_bytes_.load();
  return {.pages = all.pages - std::min(all.pages, pages), .bytes = all.bytes - std::min(all.bytes, bytes)};
}

bool PageShelf::may_read(pagetable::Serial serial, const std::string& tenant) const {
  const auto found = regions_.find(serial);
  return found != regions_.end() &&
         cluster::directory::may_read(DirectoryService::tenant_of(tenant), found->second.tenant, found->second.readers);
}

void PageShelf::lend(const SharedPage& page, Lent lent) {
  std::shared_ptr<const sharing::RegionKey> key;
  const MemoryRef memory = page_of(page, key);
  if (memory == nullptr) return lent(std::unexpected(Answer::unknown));
  const auto tag = key->known_tag(page.page);
  if (!tag) return lent(std::unexpected(Answer::failed));  // none: it was not checked
  lent(LentPage{.bytes = {memory->bytes, memory->count}, .tag = *tag, .give_back = [memory] {}});
}

PageShelf::MemoryRef PageShelf::page_of(const SharedPage& page, std::shared_ptr<const sharing::RegionKey>& key) {
  const auto live = regions_.find(page.serial);
  const auto retired = retired_.find(page.serial);
  if (live == regions_.end() && retired == retired_.end()) return nullptr;
  if (live == regions_.end()) retired->second.until_us = node_.clock().now_us() + kRetiredUs;
  const Region& region = live != regions_.end() ? live->second : retired->second.region;
  const auto kept = region.pages.find(page.page);
  if (kept == region.pages.end() || region.page_bytes != page.bytes) return nullptr;
  key = region.key;
  return kept->second;
}

// ---- regions that have ended ----

PageShelf::RetiredRef PageShelf::drop(RetiredRef retired) {
  const Region& region = retired->second.region;
  retired_pages_ -= region.pages.size();
  retired_bytes_ -= region.pages.size() * region.page_bytes;
  return retired_.erase(retired);
}

bool PageShelf::drop_idle() {
  const std::uint64_t now_us = retired_.empty() ? 0 : node_.clock().now_us();
  const std::size_t before = retired_.size();
  for (auto each = retired_.begin(); each != retired_.end();)
    each = each->second.until_us <= now_us ? drop(each) : std::next(each);
  return retired_.size() != before;
}

void PageShelf::ended(Serial serial) {
  auto ending = regions_.extract(page_serial(serial));
  if (!ending || stopping_) return;
  // It may have begun again since it ended here: the pages are the same, and some may be new.
  if (const auto before = retired_.find(ending.key()); before != retired_.end()) drop(before);
  Region& region = ending.mapped();
  region.source.reset();
  retired_pages_ += region.pages.size();
  retired_bytes_ += region.pages.size() * region.page_bytes;
  retired_.emplace(ending.key(), Retired{.region = std::move(region), .until_us = node_.clock().now_us() + kRetiredUs});
}

// Those that were used least lately go first.
std::shared_ptr<PageShelf::Memory> PageShelf::make_memory(std::uint64_t bytes) {
  for (;;) {
    if (auto memory = Memory::make(budget_, bytes)) return memory;
    if (retired_.empty()) return nullptr;
    drop(std::ranges::min_element(retired_, {}, [](const auto& each) { return each.second.until_us; }));
  }
}

// ---- what homes ask for ----

PageShelf::Region* PageShelf::region_of(const RegionRecord& record) {
  const pagetable::Serial serial = page_serial(record.serial);
  if (const auto known = regions_.find(serial); known != regions_.end()) return &known->second;
  constexpr std::size_t kKeyBytes = sharing::RegionKey::kBytes;
  if (record.key.size() != kKeyBytes) return nullptr;
  const auto* const secret = reinterpret_cast<const unsigned char*>(record.key.data());
  auto made = sharing::RegionKey::of(std::span<const unsigned char, kKeyBytes>(secret, kKeyBytes));
  if (!made) return nullptr;
  Region region{.tenant = record.tenant,
                .readers = record.readers,
                .page_bytes = record.page_bytes,
                .key = {},
                .source = {},
                .pages = {}};
  region.key = std::make_shared<const sharing::RegionKey>(*std::move(made));
  region.source = tier_->open({.name = record.name,
                               .serial = serial,
                               .bytes = record.bytes,
                               .page_bytes = record.page_bytes,
                               .first_granule = std::uint32_t(record.first_granule),
                               .earlier = page_serial(record.earlier),
                               .key = region.key});
  const auto slot = region.source->lay_out(record.page_bytes, record.pages);
  if (!slot) return nullptr;
  region.first_slot = *slot;
  return &regions_.emplace(serial, std::move(region)).first->second;
}

void PageShelf::keep(const KeepWanted& wanted, const RegionRecord& record) {
  Region* const region = stopping_ ? nullptr : region_of(record);
  if (region == nullptr) return directory_->kept(wanted, KeepAnswer::no);
  const auto order = orders_.insert(orders_.end(), Order{.wanted = wanted});
  order->left = 1;  // until all have begun
  each_page(wanted.pages, [&](std::uint32_t page) {
    if (!region->pages.contains(page)) fetch(order, *region, page);
  });
  --order->left;
  settle(order);
}

void PageShelf::fetch(std::list<Order>::iterator order, Region& region, std::uint32_t page) {
  std::shared_ptr<Memory> memory = make_memory(region.page_bytes);
  if (memory == nullptr) return void(order->unfit.insert(page));
  const pagetable::Serial serial = page_serial(order->wanted.serial);
  tiers::Transfer transfer{.page = {serial, page},
                           .version = 1,
                           .slot = region.first_slot + page,
                           .host = memory->bytes,
                           .bytes = region.page_bytes};
  if (const Status begun = tier_->submit({&transfer, 1}); !begun) {
    VMEM_LOG_WARN("page {} of a published region is not copied here: {}", page, begun.error().message);
    order->lost.insert(page);
    return;
  }
  ++order->left;
  coming_.emplace(transfer.id, Coming{order, serial, page, std::move(memory), region.source});
}

bool PageShelf::step() {
  if (tier_ == nullptr) return false;
  completions_.clear();
  (void)tier_->poll(completions_);
  for (const tiers::Completion& completion : completions_) arrived(completion);
  return drop_idle() || !completions_.empty();
}

void PageShelf::arrived(const tiers::Completion& completion) {
  auto found = coming_.extract(completion.id);
  if (!found) return;
  Coming& coming = found.mapped();
  const auto region = regions_.find(coming.serial);
  // The region may have ended since, and begun again with another source.
  const bool lives = region != regions_.end() && region->second.source == coming.source;
  if (completion.outcome != tiers::Outcome::done || !lives) {
    coming.order->lost.insert(coming.page);
    if (completion.outcome == tiers::Outcome::done) forget(coming);
  } else {
    region->second.pages.insert_or_assign(coming.page, std::move(coming.memory));
  }
  --coming.order->left;
  settle(coming.order);
}

// A page that came for a part in the region that has ended, and was dropped. If a new part has
// begun, the directory believes that the shelf has the page for that one.
void PageShelf::forget(const Coming& coming) {
  const auto region = regions_.find(coming.serial);
  if (region != regions_.end() && region->second.pages.contains(coming.page)) return;
  if (directory_->drop(coming.order->wanted.serial, coming.page)) return;
  directory_->missing({.serial = coming.serial, .bytes = coming.memory->count, .page = coming.page},
                      directory_->self());
}

// Each page is answered for itself: what fits is kept. A page that came by another order meanwhile
// stays as a cached one, unless it is kept.
void PageShelf::settle(std::list<Order>::iterator order) {
  if (order->left != 0) return;
  KeepWanted here = order->wanted;
  here.pages.clear();
  const auto region = regions_.find(page_serial(here.serial));
  each_page(order->wanted.pages, [&](std::uint32_t page) {
    if (order->unfit.contains(page) || order->lost.contains(page)) return;
    // What was there when the order began may have been released since.
    const bool there = region != regions_.end() && region->second.pages.contains(page);
    there ? append(here.pages, page) : void(order->lost.insert(page));
  });
  if (!here.pages.empty()) directory_->kept(here, KeepAnswer::yes);
  refuse(*order, order->lost, KeepAnswer::no);
  refuse(*order, order->unfit, KeepAnswer::no_room);
  orders_.erase(order);
}

void PageShelf::refuse(const Order& order, const std::set<std::uint32_t>& pages, KeepAnswer why) {
  if (pages.empty()) return;
  KeepWanted refused = order.wanted;
  refused.pages.clear();
  for (const std::uint32_t page : pages) append(refused.pages, page);
  directory_->kept(refused, why);
  release(refused.serial, refused.pages);
}

void PageShelf::release(Serial serial, const Runs& pages) {
  const auto region = regions_.find(page_serial(serial));
  if (region == regions_.end()) return;
  each_page(pages, [&](std::uint32_t page) {
    if (directory_->drop(serial, page)) region->second.pages.erase(page);
  });
}
}  // namespace vmem::runtime
