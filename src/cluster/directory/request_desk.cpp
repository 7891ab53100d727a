#include "cluster/directory/request_desk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace vmem::cluster::directory {

void RequestDesk::fail_request(const RegionRequest& request, const Error& why, Outbox& out) {
  if (request.kind == RegionRequest::Kind::open)
    out.events.emplace_back(OpenEnded{.ticket = request.ticket, .serial = std::unexpected(why)});
  else
    out.events.emplace_back(RemoveEnded{.ticket = request.ticket, .status = std::unexpected(why)});
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

Error RequestDesk::late(const RegionRequest& request) const {
  const StoredRegion* const region = find(request);
  const std::string what = request.kind == RegionRequest::Kind::open ? "opened" : "removed";
  if (region == nullptr)
    return {VMEM_ERROR_TIMEOUT, 0,
            fmt::format("region '{}' was to be {}, and nobody has published that name; `vmem region list` shows the "
                        "names",
                        request.name, what)};
  return {VMEM_ERROR_TIMEOUT, 0,
          fmt::format("region '{}' was to be {}, and its home, node {}, did not answer in time, or does not "
                      "know this node (its secret, or its certificate), or the region is being removed; try again",
                      request.name, what, std::uint64_t(region->record.home))};
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
    fail_request(request, late(request), out);
    request.ticket = Ticket{};
    return true;
  }
  if (fresh_us < request.asked_us) return false;
  const StoredRegion* const region = find(request);
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
