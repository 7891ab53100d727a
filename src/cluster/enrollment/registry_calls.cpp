#include "cluster/enrollment/registry_calls.hpp"

#include <utility>

namespace vmem::cluster {
namespace {

std::uint64_t number(RequestId id) { return static_cast<std::uint64_t>(id); }

}  // namespace

RegistryCall::RegistryCall(RegistryCall&& other) noexcept
    : calls_(std::exchange(other.calls_, nullptr)), id_(other.id_), sent_us_(other.sent_us_) {}

RegistryCall& RegistryCall::operator=(RegistryCall&& other) noexcept {
  if (this == &other) return *this;
  drop();
  calls_ = std::exchange(other.calls_, nullptr);
  id_ = other.id_;
  sent_us_ = other.sent_us_;
  return *this;
}

std::optional<Reply> RegistryCall::take() {
  if (calls_ == nullptr) return std::nullopt;
  std::optional<Reply> reply = calls_->take(id_);
  if (reply) calls_ = nullptr;
  return reply;
}

void RegistryCall::drop() noexcept {
  if (calls_ != nullptr) calls_->drop(id_);
  calls_ = nullptr;
}

RegistryCall RegistryCalls::post(RegistryRequest request) {
  // The time of sending is read first: a stop in between makes the lease look older, not younger.
  const std::uint64_t sent_us = clock_.now_us();
  const RequestId id = registry_.post(std::move(request));
  waiting_.emplace(number(id), std::nullopt);
  return {*this, id, sent_us};
}

bool RegistryCalls::poll() {
  registry_.poll(replies_);
  bool any = false;
  for (Reply& reply : replies_) {
    const auto found = waiting_.find(number(reply.request));
    if (found == waiting_.end()) continue;
    found->second = std::move(reply);
    any = true;
  }
  replies_.clear();
  return any;
}

std::optional<Reply> RegistryCalls::take(RequestId id) {
  const auto found = waiting_.find(number(id));
  if (found == waiting_.end() || !found->second) return std::nullopt;
  std::optional<Reply> reply = std::move(found->second);
  waiting_.erase(found);
  return reply;
}

void RegistryCalls::drop(RequestId id) noexcept { waiting_.erase(number(id)); }

const Record* find_record(const Read& read, std::string_view key) {
  for (const Record& record : read.records)
    if (record.key == key) return &record;
  return nullptr;
}

}  // namespace vmem::cluster
