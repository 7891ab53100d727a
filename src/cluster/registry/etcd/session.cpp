#include "cluster/registry/etcd/session.hpp"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "base/log.hpp"
#include "base/printable.hpp"
#include "cluster/registry/request_check.hpp"
#include "cluster/registry/request_text.hpp"

namespace vmem::cluster {
namespace {

// Of one call: tokens may expire or be revoked while it waits for its turn.
constexpr std::uint32_t kMostLogins = 3;

// Whether another try does no harm if the first one was carried out.
bool is_idempotent(const RegistryRequest& request) {
  return !std::holds_alternative<Commit>(request) && !std::holds_alternative<GrantLease>(request);
}

vmem_status status_of(EtcdCode code) {
  switch (code) {
    case EtcdCode::permission_denied:
    case EtcdCode::unauthenticated:
      return VMEM_ERROR_INVALID_OPTION;
    case EtcdCode::resource_exhausted:
      return VMEM_ERROR_OUT_OF_MEMORY;
    case EtcdCode::unimplemented:
      return VMEM_ERROR_UNSUPPORTED;
    default:
      return VMEM_ERROR_INVALID_VALUE;
  }
}

const char* advice_for(EtcdCode code) {
  switch (code) {
    case EtcdCode::permission_denied:
      return "; let the user read and write all keys below /vmem/ and the name of the cluster";
    case EtcdCode::resource_exhausted:
      return "; make room in etcd (compact, defragment, clear its alarm), or raise its quota";
    case EtcdCode::not_found:
      return "; if its lease has ended, grant another";
    default:
      return "";
  }
}

HttpFailure unanswered(std::string why) { return {.kind = HttpFailure::Kind::unanswered, .why = std::move(why)}; }

HttpFailure not_of_etcd(const Unintelligible& answer) {
  return unanswered("answered what etcd does not: " + answer.why);
}

}  // namespace

EtcdSession::EtcdSession(EtcdAddress address)
    : address_(std::move(address)), key_prefix_(key_prefix_of(address_.cluster)), endpoints_(address_) {}

void EtcdSession::post(RequestId id, RegistryRequest request) {
  if (const Status checked = check_request(request); !checked)
    return reply(id, {.request = id, .revision = {}, .what = checked.error()});
  start({.id = id, .request = std::move(request), .attempts = {}, .endpoint = 0, .token = {}, .logins = 0});
}

void EtcdSession::take_requests(std::vector<HttpRequest>& requests) {
  requests.insert(requests.end(), std::make_move_iterator(requests_.begin()), std::make_move_iterator(requests_.end()));
  requests_.clear();
}

void EtcdSession::take_replies(std::vector<Reply>& replies) {
  replies.insert(replies.end(), std::make_move_iterator(replies_.begin()), std::make_move_iterator(replies_.end()));
  replies_.clear();
}

void EtcdSession::finished(const HttpResult& result) {
  const auto* const answer = std::get_if<HttpAnswer>(&result.what);
  const auto* const failure = std::get_if<HttpFailure>(&result.what);
  if (login_ && login_->id == result.id) return answer ? login_answered(*answer) : login_failed(*failure);
  auto found = in_flight_.extract(result.id);
  if (found.empty()) return;
  answer ? answered(std::move(found.mapped()), *answer) : failed(std::move(found.mapped()), *failure);
}

// ---- calls ----

void EtcdSession::start(Call call) {
  if (needs_token()) {
    waiting_.push_back(std::move(call));
    if (!login_) log_in();
    return;
  }
  const auto endpoint = call.attempts.next(endpoints_);
  if (!endpoint) return refuse(call, call.attempts.error(describe(call.request)));
  call.endpoint = *endpoint;
  call.token = token_.value_or("");
  const HttpId id =
      send(*endpoint, encode_request(call.request, key_prefix_), call.token, !is_idempotent(call.request));
  in_flight_.emplace(id, std::move(call));
}

void EtcdSession::answered(Call call, const HttpAnswer& answer) {
  EtcdAnswer decoded = decode_answer(call.request, key_prefix_, answer.status, answer.body);
  if (const auto* refusal = std::get_if<EtcdRefusal>(&decoded)) return refused(std::move(call), *refusal);
  if (const auto* other = std::get_if<Unintelligible>(&decoded)) return failed(std::move(call), not_of_etcd(*other));
  endpoints_.answered(call.endpoint);
  reply(call.id, std::get<Reply>(std::move(decoded)));
}

void EtcdSession::failed(Call call, const HttpFailure& failure) {
  endpoints_.failed(call.endpoint, harmless(failure.why));
  if (failure.kind == HttpFailure::Kind::unanswered && !is_idempotent(call.request))
    return refuse(call, VMEM_ERROR_TIMEOUT,
                  failure.why + "; it may have been carried out: read what there is before another try");
  call.attempts.failed(endpoints_, call.endpoint, {.kind = failure.kind, .why = harmless(failure.why)});
  start(std::move(call));
}

void EtcdSession::refused(Call call, const EtcdRefusal& refusal) {
  if (refusal.code == EtcdCode::not_found && std::holds_alternative<EndLease>(call.request)) {
    endpoints_.answered(call.endpoint);
    return reply(call.id, {.request = {}, .revision = {}, .what = Ended{}});
  }
  if (!is_final(refusal.code)) return failed(std::move(call), unanswered("etcd answered: " + refusal.message));
  endpoints_.answered(call.endpoint);
  if (asks_for_token(refusal) && !address_.user.empty() && call.logins < kMostLogins) {
    ++call.logins;
    if (token_ == call.token) token_.reset();
    return start(std::move(call));
  }
  if (asks_for_token(refusal) && address_.user.empty())
    return refuse(
        call, VMEM_ERROR_INVALID_OPTION,
        fmt::format("etcd answered: {}; give a user and a password in the address of the registry", refusal.message));
  refuse(call, status_of(refusal.code), fmt::format("etcd answered: {}{}", refusal.message, advice_for(refusal.code)));
}

void EtcdSession::refuse(const Call& call, vmem_status status, const std::string& why) {
  refuse(call, {.status = status,
                .message = fmt::format("registry: {}: {}: {}", describe(call.request), endpoints_.url(call.endpoint),
                                       harmless(why))});
}

// The status of an error says whether the request may have been carried out, by an earlier try too.
void EtcdSession::refuse(const Call& call, Error error) {
  if (call.attempts.unanswered()) error.status = VMEM_ERROR_TIMEOUT;
  reply(call.id, {.request = {}, .revision = {}, .what = std::move(error)});
}

void EtcdSession::reply(RequestId id, Reply reply) {
  reply.request = id;
  replies_.push_back(std::move(reply));
}

// ---- the token ----

void EtcdSession::log_in() {
  if (!login_) login_ = Login{.id = {}, .attempts = {}, .endpoint = 0};
  const auto endpoint = login_->attempts.next(endpoints_);
  if (!endpoint)
    return fail_waiting(login_->attempts.error(fmt::format("proving to be user '{}'", printable(address_.user))));
  login_->endpoint = *endpoint;
  login_->id = send(*endpoint, encode_authenticate(address_.user, address_.password), "", false);
}

void EtcdSession::login_answered(const HttpAnswer& answer) {
  auto decoded = decode_token(answer.status, answer.body);
  if (const auto* refusal = std::get_if<EtcdRefusal>(&decoded)) return login_refused(*refusal);
  if (const auto* other = std::get_if<Unintelligible>(&decoded)) return login_failed(not_of_etcd(*other));
  endpoints_.answered(login_->endpoint);
  token_ = std::get<EtcdToken>(std::move(decoded)).text;
  start_waiting();
}

void EtcdSession::login_failed(const HttpFailure& failure) {
  const HttpFailure said{.kind = failure.kind, .why = harmless(failure.why)};
  endpoints_.failed(login_->endpoint, said.why);
  login_->attempts.failed(endpoints_, login_->endpoint, said);
  log_in();
}

void EtcdSession::login_refused(const EtcdRefusal& refusal) {
  if (!is_final(refusal.code)) return login_failed(unanswered("etcd answered: " + refusal.message));
  endpoints_.answered(login_->endpoint);
  if (refusal.code == EtcdCode::failed_precondition && refusal.message.contains("not enabled")) {
    VMEM_LOG_INFO("registry: etcd at {} asks nobody for a password", endpoints_.url(login_->endpoint));
    token_ = "";
    return start_waiting();
  }
  fail_waiting(
      {.status = VMEM_ERROR_INVALID_OPTION,
       .message = fmt::format("registry: {} does not accept user '{}' with the password given ({}); correct "
                              "them in the address of the registry",
                              endpoints_.url(login_->endpoint), printable(address_.user), harmless(refusal.message))});
}

void EtcdSession::start_waiting() {
  login_.reset();
  for (Call& each : std::exchange(waiting_, {})) start(std::move(each));
}

void EtcdSession::fail_waiting(const Error& error) {
  login_.reset();
  for (const Call& each : std::exchange(waiting_, {})) {
    Error own = error;
    own.message = fmt::format("{} (asked: {})", error.message, describe(each.request));
    refuse(each, std::move(own));
  }
}

HttpId EtcdSession::send(std::size_t endpoint, EtcdRequest request, const std::string& token, bool once) {
  const HttpId id{++last_http_id_};
  requests_.push_back({.id = id,
                       .url = endpoints_.url(endpoint) + request.path,
                       .body = std::move(request.body),
                       .token = token,
                       .once = once});
  return id;
}

// What another host said, for a message: one line, and never the password.
std::string EtcdSession::harmless(std::string text) const {
  const std::string& password = address_.password;
  if (!password.empty()) {
    for (auto at = text.find(password); at != std::string::npos; at = text.find(password, at))
      text.replace(at, password.size(), "***"), at += 3;
  }
  return printable(text, 512);
}

}  // namespace vmem::cluster
