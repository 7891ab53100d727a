// What becomes of each request to etcd: the endpoint that gets it, another try at the next one, the
// user's token, and at last one Reply. Pure: the owner makes the HTTP requests.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "cluster/registry/etcd/endpoints.hpp"
#include "cluster/registry/etcd/messages.hpp"

namespace vmem::cluster {

// One thread.
class EtcdSession {
 public:
  explicit EtcdSession(EtcdAddress address);

  void post(RequestId id, RegistryRequest request);
  // Appends the HTTP requests to make now. Each ends in one finished().
  void take_requests(std::vector<HttpRequest>& requests);
  void finished(const HttpResult& result);
  void take_replies(std::vector<Reply>& replies);

 private:
  struct Call {
    RequestId id{};
    RegistryRequest request;
    Attempts attempts;
    std::size_t endpoint = 0;
    std::string token;
    std::uint32_t logins = 0;  // that it caused
  };
  struct Login {
    HttpId id{};
    Attempts attempts;
    std::size_t endpoint = 0;
  };
  void start(Call call);
  void answered(Call call, const HttpAnswer& answer);
  void failed(Call call, const HttpFailure& failure);
  void refused(Call call, const EtcdRefusal& refusal);
  void reply(RequestId id, Reply reply);
  void refuse(const Call& call, vmem_status status, const std::string& why);
  void refuse(const Call& call, Error error);

  bool needs_token() const noexcept { return !address_.user.empty() && !token_; }
  void log_in();
  void login_answered(const HttpAnswer& answer);
  void login_failed(const HttpFailure& failure);
  void login_refused(const EtcdRefusal& refusal);
  void start_waiting();
  void fail_waiting(const Error& error);

  HttpId send(std::size_t endpoint, EtcdRequest request, const std::string& token, bool once);
  std::string harmless(std::string text) const;

  const EtcdAddress address_;
  const std::string key_prefix_;
  Endpoints endpoints_;
  std::optional<std::string> token_;  // "": etcd asks for none
  std::optional<Login> login_;        // in flight
  std::vector<Call> waiting_;         // for the token
  std::map<HttpId, Call> in_flight_;
  std::vector<HttpRequest> requests_;
  std::vector<Reply> replies_;
  std::uint64_t last_http_id_ = 0;
};

}  // namespace vmem::cluster
