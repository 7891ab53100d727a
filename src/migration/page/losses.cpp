#include "migration/page/losses.hpp"

#include <utility>

#include "base/log.hpp"

namespace vmem::migration {

void Losses::lose(PageRef ref, const Error& error) {
  VMEM_LOG_ERROR("the page at {:#x} is lost: {}", core_.address_of(ref), error.message);
  lost_[ref.id()] = error.message;
  residency_.publish(ref, ref.state().set(PageState::kLost));
}

std::string Losses::reason(PageRef ref) const {
  const auto known = lost_.find(ref.id());
  return known == lost_.end() ? std::string() : known->second;
}

void Losses::add_unread(PageRef ref, Unread unread) {
  unread_[ref.id()] = std::move(unread);
  residency_.publish(ref, ref.state().with(pagetable::Access::none).set(PageState::kLost));
}

const Losses::Unread* Losses::unread(PageRef ref) const {
  if (unread_.empty()) return nullptr;
  const auto found = unread_.find(ref.id());
  return found == unread_.end() ? nullptr : &found->second;
}

std::optional<Losses::Unread> Losses::take_unread(PageRef ref) {
  auto found = unread_.extract(ref.id());
  if (found.empty()) return std::nullopt;
  return std::move(found.mapped());
}

void Losses::forget(const Region& region) {
  const PageId first{region.id, 0}, behind{{region.id.value + 1}, 0};
  lost_.erase(lost_.lower_bound(first), lost_.lower_bound(behind));
}

}  // namespace vmem::migration
