#include "cluster/directory/request_desk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "cluster/directory/region_errors.hpp"

namespace vmem::cluster::directory {
namespace {

std::string_view participle(const RegionRequest& request) {
  return request.kind == RegionRequest::Kind::open ? "opened" : "removed";
}

}  // namespace

void RequestDesk::fail_request(const RegionRequest& request, const Error& why, Outbox& out) {
  if (request.kind == RegionRequest::Kind::open)
    out.events.emplace_back(OpenEnded{.ticket = request.ticket, .serial = std::unexpected(why)});
  else
    out.events.emplace_back(RemoveEnded{.ticket = request.ticket, .status = std::unexpected(why)});
}

void RequestDesk::ask(RegionRequest::Kind kind, Ticket ticket, std::string name, std::uint64_t now_us,
                      std::uint64_t deadline_us, Outbox& out) {
  requests_.push_back(
      {.kind = kind, .ticket = ticket, .name = std::move(name), .asked_us = now_us, .deadline_us = deadline_us});
  Status right = check_name(requests_.back().name);
  if (right && !context_.is_member()) right = std::unexpected(not_a_member());
  if (right) return;
  fail_request(requests_.back(), right.error(), out);
  requests_.pop_back();
}

void RequestDesk::removed(Serial serial, Outbox& out) {
  std::erase_if(requests_, [&](const RegionRequest& request) {
    if (request.serial != serial) return false;
    out.events.emplace_back(RemoveEnded{.ticket = request.ticket, .status = {}});
    return true;
  });
}

void RequestDesk::refused(Serial serial, Outbox& out) {
  std::erase_if(requests_, [&](const RegionRequest& request) {
    if (request.serial != serial) return false;
    fail_request(request,
                 {VMEM_ERROR_INVALID_OPTION, 0,
                  fmt::format("region '{}' was to be removed, and belongs to another tenant: only its publisher and "
                              "its tenant may remove it",
                              request.name)},
                 out);
    return true;
  });
}

void RequestDesk::end(const Error& why, Outbox& out) {
  for (const RegionRequest& request : std::exchange(requests_, {})) fail_request(request, why, out);
}

const StoredRegion* RequestDesk::find(const RegionRequest& request) const {
  if (request.serial != Serial{}) return context_.index.find(request.serial);
  const StoredName* const name = context_.index.find_name(request.name);
  return name == nullptr ? nullptr : context_.index.find(name->record.serial);
}

bool RequestDesk::removes(const RegionRecord& region) const {
  return std::ranges::any_of(requests_, [&](const RegionRequest& request) {
    const StoredRegion* const asked = request.kind == RegionRequest::Kind::remove ? find(request) : nullptr;
    return asked != nullptr && asked->record.serial == region.serial;
  });
}

// A home that refuses connections hears nothing of the request, however often it is said.
std::optional<Error> RequestDesk::refused(const RegionRequest& request, const StoredRegion* region) const {
  if (region == nullptr || !no_path_) return std::nullopt;
  const std::optional<NoPath> trouble = no_path_(region->record.home);
  if (!trouble || !trouble->refused || trouble->at_us < request.asked_us) return std::nullopt;
  return Error{VMEM_ERROR_INVALID_OPTION, 0,
               fmt::format("region '{}' was to be {}, and {} refuses the connection: {}", request.name,
                           participle(request), home_of(region->record), trouble->why)};
}

Error RequestDesk::late(const RegionRequest& request, std::uint64_t fresh_us) const {
  const std::string asked = fmt::format("region '{}' was to be {}, and ", request.name, participle(request));
  if (fresh_us < request.asked_us)
    return {VMEM_ERROR_TIMEOUT, 0, asked + "the registry did not answer in time; try again once it does"};
  const StoredRegion* const region = find(request);
  if (region == nullptr)
    return {VMEM_ERROR_TIMEOUT, 0, asked + "nobody has published that name; `vmem region list` shows the names"};
  const std::optional<NoPath> trouble = no_path_ ? no_path_(region->record.home) : std::nullopt;
  return {VMEM_ERROR_TIMEOUT, 0,
          fmt::format("{}{} did not answer in time{}, or the region is being removed; try again", asked,
                      home_of(region->record), trouble ? fmt::format(" ({})", trouble->why) : "")};
}

bool RequestDesk::step_removal(RegionRequest& request, const StoredRegion* region, std::uint64_t now_us, Outbox& out) {
  if (now_us < request.next_us || (region == nullptr && request.serial == Serial{})) return false;
  request.next_us = now_us + context_.config.resend_us;
  if (region == nullptr) return true;
  request.serial = region->record.serial;
  out.messages.push_back(
      {.to = region->record.home,
       .message = {.serial = request.serial, .term = region->record.term, .session = {}, .body = Remove{}}});
  return true;
}

// Whether something happened; a request without a ticket has ended.
bool RequestDesk::step(RegionRequest& request, std::uint64_t now_us, std::uint64_t fresh_us, const Open& open,
                       Outbox& out) {
  if (now_us >= request.deadline_us) {
    fail_request(request, late(request, fresh_us), out);
    request.ticket = Ticket{};
    return true;
  }
  if (fresh_us < request.asked_us) return false;
  const StoredRegion* const region = find(request);
  if (const std::optional<Error> why = refused(request, region)) {
    fail_request(request, *why, out);
    request.ticket = Ticket{};
    return true;
  }
  if (request.kind == RegionRequest::Kind::remove) return step_removal(request, region, now_us, out);
  if (region == nullptr || region->record.removed || !open(request, region->record)) return false;
  request.ticket = Ticket{};
  return true;
}

bool RequestDesk::step(std::uint64_t now_us, std::uint64_t fresh_us, const Open& open, Outbox& out) {
  bool moved = false;
  for (RegionRequest& request : requests_) moved |= step(request, now_us, fresh_us, open, out);
  std::erase_if(requests_, [](const RegionRequest& request) { return request.ticket == Ticket{}; });
  return moved;
}

std::uint64_t RequestDesk::due_us() const {
  std::uint64_t due_us = UINT64_MAX;
  for (const RegionRequest& request : requests_) {
    due_us = std::min(due_us, request.deadline_us);
    if (request.serial != Serial{}) due_us = std::min(due_us, request.next_us);
  }
  return due_us;
}

}  // namespace vmem::cluster::directory
