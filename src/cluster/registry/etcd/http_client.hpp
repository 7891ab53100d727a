// HTTP requests in flight, by libcurl's multi interface, so that an endpoint that does not answer
// delays no other request.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "base/closed_on_fork.hpp"
#include "base/log_limit.hpp"
#include "cluster/registry/etcd/curl_table.hpp"
#include "cluster/registry/etcd/http.hpp"

namespace vmem::cluster {

// One thread.
class HttpClient {
 public:
  struct Config {
    CurlRef curl;
    TlsFiles tls;
    std::uint64_t limit_us = 0;          // of a request as a whole
    std::uint64_t connect_limit_us = 0;  // of its connection
  };
  // Errors: UNSUPPORTED.
  static Result<std::unique_ptr<HttpClient>> create(Config config);
  // Drops the requests in flight, without waiting for any.
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void start(HttpRequest request);
  // Appends results; if there are none yet, waits for some, at most `most_wait_ms`, or until
  // `wake_descriptor` is readable.
  void run(std::vector<HttpResult>& results, int wake_descriptor, int most_wait_ms);

 private:
  struct Transfer;
  HttpClient(Config config, CURLM* multi);
  bool set_up(Transfer& transfer) const;
  bool set_up_trust(Transfer& transfer) const;
  bool set_up_sockets(Transfer& transfer);
  void wait_after(CURLMcode code, int wake_descriptor);
  void collect(std::vector<HttpResult>& results);
  std::variant<HttpAnswer, HttpFailure> outcome(Transfer& transfer, CURLcode code) const;

  const Config config_;
  CURLM* const multi_;
  LogLimit failures_;
  std::vector<HttpResult> failed_to_start_;
  std::map<CURL*, std::unique_ptr<Transfer>> transfers_;
  // libcurl opens and closes these through callbacks.
  std::map<int, OwnDescriptor> sockets_;
};

}  // namespace vmem::cluster
