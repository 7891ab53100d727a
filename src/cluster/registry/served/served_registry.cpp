#include "cluster/registry/served/served_registry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "base/printable.hpp"
#include "base/sizes.hpp"
#include "cluster/registry/request_check.hpp"
#include "cluster/registry/request_text.hpp"
#include "cluster/registry/served/record_codec.hpp"

namespace vmem::cluster {
namespace {

using served::Answer, served::Declined, served::FetchPage, served::Incarnation, served::NoSession, served::Opened,
    served::Outcome, served::Page, served::Question, served::SessionId, served::Taken, served::WritePiece;

constexpr std::uint64_t kOpenNumber = 0;  // requests have numbers from 1 on

bool is_read(const RegistryRequest& request) { return std::holds_alternative<ReadPrefix>(request); }
bool is_write(const RegistryRequest& request) {
  return std::holds_alternative<Commit>(request) || std::holds_alternative<GrantLease>(request);
}

// What is sent in pieces. "" for other requests.
std::string write_bytes(const RegistryRequest& request) {
  if (const auto* commit = std::get_if<Commit>(&request)) return served::encode_write(*commit);
  if (const auto* grant = std::get_if<GrantLease>(&request)) return served::encode_write(*grant);
  return "";
}

Status check(const RegistryRequest& request) {
  VMEM_TRY(check_request(request));
  const auto* const read = std::get_if<ReadPrefix>(&request);
  if (read == nullptr || read->prefix.size() <= served::kMostPrefixBytes) return {};
  return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("reading a prefix of {} bytes: at most {} are possible; read a "
                                                    "shorter one",
                                                    read->prefix.size(), served::kMostPrefixBytes));
}

// Whether the outcome is one of such a request.
bool fits(const RegistryRequest& request, const Outcome& outcome) {
  if (std::holds_alternative<Error>(outcome.what)) return is_write(request);
  if (std::holds_alternative<Committed>(outcome.what)) return std::holds_alternative<Commit>(request);
  if (std::holds_alternative<Granted>(outcome.what)) return std::holds_alternative<GrantLease>(request);
  if (std::holds_alternative<Renewed>(outcome.what)) return std::holds_alternative<RenewLease>(request);
  return std::holds_alternative<EndLease>(request);
}

}  // namespace

Result<std::unique_ptr<ServedRegistry>> ServedRegistry::create(const Clock& clock, RequestChannel& channel,
                                                               Setup setup) {
  if (!served::is_cluster_name(setup.cluster))
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("'{}' is no name of a cluster: 1 to {} letters, digits, '.', '_' and '-' are possible",
                            printable(setup.cluster), served::kMostClusterBytes));
  return std::unique_ptr<ServedRegistry>(new ServedRegistry(clock, channel, std::move(setup)));
}

// ---- questions ----

void ServedRegistry::ask(std::uint64_t number, decltype(Question::what) what) {
  channel_.send(served::encode(
      Question{.client = setup_.client, .number = number, .cluster = setup_.cluster, .what = std::move(what)}));
}

void ServedRegistry::ask_open() { ask(kOpenNumber, served::Open{}); }

void ServedRegistry::ask(RequestId id, const Call& call) {
  const auto number = static_cast<std::uint64_t>(id);
  if (const auto* read = std::get_if<ReadPrefix>(&call.request))
    return ask(number, FetchPage{.prefix = read->prefix,
                                 .revision = call.revision,
                                 .offset = static_cast<std::uint32_t>(call.pages.size())});
  if (const auto* renew = std::get_if<RenewLease>(&call.request)) return ask(number, served::Renew{renew->lease});
  if (const auto* end = std::get_if<EndLease>(&call.request)) return ask(number, served::End{end->lease});
  ask(number, WritePiece{.session = call.session,
                         .order = call.order,
                         .total = static_cast<std::uint32_t>(call.bytes.size()),
                         .offset = static_cast<std::uint32_t>(call.offset),
                         .bytes = call.bytes.substr(call.offset, served::kPieceBytes)});
}

// For the first time, or after progress.
void ServedRegistry::ask_now(RequestId id, Call& call) {
  call.repeat = {.due_us = clock_.now_us() + setup_.try_us, .wait_us = setup_.try_us};
  ask(id, call);
}

// The deadline is one of silence. What begins anew does not move it.
void ServedRegistry::go_on(RequestId id, Call& call, std::size_t done) {
  if (done > call.furthest) {
    call.furthest = done;
    call.deadline_us = clock_.now_us() + setup_.timeout_us;
  }
  ask_now(id, call);
}

bool ServedRegistry::waits(const Call& call) { return is_write(call.request) && call.session.number == 0; }

RequestId ServedRegistry::post(RegistryRequest request) {
  const RequestId id{++last_id_};
  if (const Status checked = check(request); !checked) {
    replies_.push_back({.request = id, .revision = {}, .what = checked.error()});
    return id;
  }
  Call& call = calls_[id];
  call.bytes = write_bytes(request);
  call.request = std::move(request);
  call.deadline_us = clock_.now_us() + setup_.timeout_us;
  if (!is_write(call.request))
    ask_now(id, call);
  else
    start_writes();
  return id;
}

// The server forgets outcomes beyond the window, and collects one large write of a session.
bool ServedRegistry::may_start(const Call& call) const {
  const bool large = call.bytes.size() > served::kPieceBytes;
  return std::ranges::all_of(calls_, [&](const auto& each) {
    const Call& other = each.second;
    if (other.session.number == 0) return true;
    const bool in_window = last_order_ + 1 < other.order + served::kWriteWindow;
    return in_window && (!large || other.bytes.size() <= served::kPieceBytes);
  });
}

void ServedRegistry::start_writes() {
  bool any = false;
  for (auto& [id, call] : calls_) {
    if (!waits(call)) continue;
    any = true;
    if (session_.number == 0 || !may_start(call)) continue;
    call.session = session_;
    call.order = ++last_order_;
    ask_now(id, call);
  }
  if (!any || session_.number != 0) open_ = {};
  if (!any || session_.number != 0 || open_.wait_us != 0) return;
  open_ = {.due_us = clock_.now_us() + setup_.try_us, .wait_us = setup_.try_us};
  ask_open();
}

// ---- answers ----

void ServedRegistry::handle(const std::string& message) {
  const std::optional<Answer> answer = served::decode_answer(message);
  if (!answer || !is_current(*answer)) return;
  if (answer->number == kOpenNumber) return handle_open(*answer);
  const auto at = calls_.find(RequestId{answer->number});
  if (at != calls_.end()) std::visit([&](const auto& each) { take(at, each); }, answer->what);
}

bool ServedRegistry::is_current(const Answer& answer) {
  if (answer.client != setup_.client) return false;
  if (answer.incarnation > incarnation_) restarted(answer.incarnation);
  if (answer.incarnation == incarnation_) return true;
  trouble_ =
      "its answers are of an earlier run than others were: if the clock of its machine was set back, start it "
      "again once the clock is right";
  return false;
}

// Readings begin anew, and writes that were sent to the run before have an unknown outcome.
void ServedRegistry::restarted(Incarnation incarnation) {
  incarnation_ = incarnation;
  session_ = {};
  trouble_.clear();
  for (auto at = calls_.begin(); at != calls_.end();) {
    Call& call = at->second;
    if (call.session.number != 0) {
      at = refuse(at, VMEM_ERROR_TIMEOUT,
                  "the registry has started anew; it may have been carried out before: read what there is");
      continue;
    }
    const bool begun = !call.pages.empty();
    call.pages.clear();
    call.revision = {};
    if (begun) ask_now(at->first, call);
    ++at;
  }
}

void ServedRegistry::handle_open(const Answer& answer) {
  if (const auto* opened = std::get_if<Opened>(&answer.what)) {
    const SessionId session{.incarnation = answer.incarnation, .number = opened->session};
    // A copy of an earlier answer: the session is in use, or lost.
    if (session <= last_session_) return;
    session_ = last_session_ = session;
    last_order_ = 0;
    open_ = {};
    return;
  }
  const auto* const declined = std::get_if<Declined>(&answer.what);
  if (declined == nullptr || session_.number != 0) return;
  trouble_ = declined->why.message;
  if (declined->why.status == VMEM_ERROR_TIMEOUT) return;
  for (auto at = calls_.begin(); at != calls_.end();)
    at = waits(at->second) ? refuse(at, declined->why.status, declined->why.message) : std::next(at);
}

void ServedRegistry::take(Calls::iterator at, const Taken& taken) {
  Call& call = at->second;
  if (!is_write(call.request) || taken.next_offset >= call.bytes.size()) return;
  // An old answer, or the server has dropped what it had: the next repetition shows which.
  const bool on = taken.next_offset > call.offset;
  call.offset = taken.next_offset;
  if (on) go_on(at->first, call, call.offset);
}

// Pages of an older reading are not mixed in, and one that came before changes nothing.
void ServedRegistry::take(Calls::iterator at, const Page& page) {
  Call& call = at->second;
  if (!is_read(call.request)) return;
  const bool begins = page.offset == 0 && page.revision > call.revision;
  const bool goes_on = page.offset == call.pages.size() && page.revision == call.revision;
  if (!begins && !goes_on) return;
  if (begins) call.pages.clear();
  call.revision = page.revision;
  call.pages += page.bytes;
  if (call.pages.size() == page.total) return finish_reading(at);
  go_on(at->first, call, call.pages.size());
}

void ServedRegistry::finish_reading(Calls::iterator at) {
  const std::string& prefix = std::get<ReadPrefix>(at->second.request).prefix;
  std::optional<std::vector<Record>> records = served::decode_records(at->second.pages);
  const bool asked = records && std::ranges::all_of(*records, [&](const Record& each) {
                       return each.key.starts_with(prefix) && each.modified <= at->second.revision;
                     });
  if (!asked) {
    (void)refuse(at, VMEM_ERROR_INTERNAL, "the answer is damaged; look at the daemon that keeps the registry");
    return;
  }
  const Revision revision = at->second.revision;
  (void)end(at, revision, Read{std::move(*records)});
}

void ServedRegistry::take(Calls::iterator at, const Outcome& outcome) {
  if (!fits(at->second.request, outcome)) return;
  if (const auto* error = std::get_if<Error>(&outcome.what)) {
    (void)refuse(at, error->status, error->message);
    return;
  }
  std::visit([&](const auto& each) { (void)end(at, outcome.revision, each); }, outcome.what);
}

// An earlier copy may have been carried out, which only for a reading makes no difference.
void ServedRegistry::take(Calls::iterator at, const Declined& declined) {
  at->second.trouble = declined.why.message;
  if (declined.why.status == VMEM_ERROR_TIMEOUT) return;
  const vmem_status status = is_read(at->second.request) ? declined.why.status : VMEM_ERROR_TIMEOUT;
  (void)refuse(at, status, declined.why.message);
}

void ServedRegistry::take(Calls::iterator at, const NoSession&) {
  const SessionId lost = at->second.session;
  if (lost.number == 0) return;
  if (lost == session_) session_ = {};
  (void)refuse(at, VMEM_ERROR_TIMEOUT,
               "the registry has forgotten this client, which was silent for long; it may have been carried out "
               "before: read what there is");
}

ServedRegistry::Calls::iterator ServedRegistry::end(Calls::iterator at, Revision revision, decltype(Reply::what) what) {
  replies_.push_back({.request = at->first, .revision = revision, .what = std::move(what)});
  return calls_.erase(at);
}

ServedRegistry::Calls::iterator ServedRegistry::refuse(Calls::iterator at, vmem_status status, const std::string& why) {
  return end(at, {},
             Error{.status = status,
                   .native = 0,
                   .message = fmt::format("registry of cluster '{}': {}: {}", setup_.cluster,
                                          describe(at->second.request), why)});
}

// ---- time ----

bool ServedRegistry::is_due(Repeat& repeat) const {
  const std::uint64_t now_us = clock_.now_us();
  if (now_us < repeat.due_us) return false;
  repeat.wait_us = std::min(2 * repeat.wait_us, setup_.most_try_us);
  repeat.due_us = now_us + repeat.wait_us;
  return true;
}

ServedRegistry::Calls::iterator ServedRegistry::expire(Calls::iterator at) {
  const Call& call = at->second;
  const std::string& trouble = call.trouble.empty() ? trouble_ : call.trouble;
  const std::string why = trouble.empty() ? "look whether the daemon that keeps the registry runs" : trouble;
  if (!waits(call))
    return refuse(at, VMEM_ERROR_TIMEOUT,
                  fmt::format("no answer within {}: {}", exact_duration_us(setup_.timeout_us), why));
  return refuse(at, VMEM_ERROR_UNSUPPORTED,
                fmt::format("not sent within {}: {}", exact_duration_us(setup_.timeout_us), why));
}

void ServedRegistry::step() {
  const std::uint64_t now_us = clock_.now_us();
  for (auto at = calls_.begin(); at != calls_.end();) {
    if (now_us >= at->second.deadline_us) {
      at = expire(at);
      continue;
    }
    if (!waits(at->second) && is_due(at->second.repeat)) ask(at->first, at->second);
    ++at;
  }
  start_writes();
  if (open_.wait_us != 0 && is_due(open_)) ask_open();
}

void ServedRegistry::poll(std::vector<Reply>& replies) {
  std::vector<std::string> answers;
  channel_.receive(answers);
  for (const std::string& each : answers) handle(each);
  step();
  std::ranges::move(replies_, std::back_inserter(replies));
  replies_.clear();
}

std::uint64_t ServedRegistry::next_due_us() const noexcept {
  if (!replies_.empty()) return 0;
  std::uint64_t due_us = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [id, call] : calls_) {
    due_us = std::min(due_us, call.deadline_us);
    if (!waits(call)) due_us = std::min(due_us, call.repeat.due_us);
  }
  return open_.wait_us == 0 ? due_us : std::min(due_us, open_.due_us);
}

}  // namespace vmem::cluster
