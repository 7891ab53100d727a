#include "cluster/registry/etcd/http_client.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <new>
#include <utility>

#include "base/log.hpp"

namespace vmem::cluster {
namespace {

// Of an answer. 10,000 records of 1 KiB are about 15 MB.
constexpr std::size_t kMostBodyBytes = std::size_t{64} << 20;
constexpr long kMostIdleConnections = 8;
constexpr int kAfterFailureMs = 100;

using Sockets = std::map<int, OwnDescriptor>;

// Callbacks of C: no exception may leave them.
curl_socket_t open_socket(void* sockets, curlsocktype, curl_sockaddr* address) noexcept {
  FileDescriptor socket(::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol));
  if (!socket) return CURL_SOCKET_BAD;
  try {
    const int number = socket.get();
    static_cast<Sockets*>(sockets)->insert_or_assign(number, OwnDescriptor(std::move(socket)));
    return number;
  } catch (const std::bad_alloc&) {
    return CURL_SOCKET_BAD;
  }
}

int close_socket(void* sockets, curl_socket_t socket) noexcept {
  static_cast<Sockets*>(sockets)->erase(socket);
  return 0;
}

std::size_t append(const char* data, std::size_t size, std::size_t count, void* body) noexcept {
  auto& text = *static_cast<std::string*>(body);
  if (size * count > kMostBodyBytes - text.size()) return CURL_WRITEFUNC_ERROR;
  try {
    text.append(data, size * count);
    return size * count;
  } catch (const std::bad_alloc&) {
    return CURL_WRITEFUNC_ERROR;
  }
}

bool is_about_trust(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE || code == CURLE_SSL_CERTPROBLEM ||
         code == CURLE_SSL_ISSUER_ERROR || code == CURLE_SSL_INVALIDCERTSTATUS || code == CURLE_SSL_CLIENTCERT;
}

// In milliseconds, of which 0 would mean no limit.
long milliseconds(std::uint64_t us) { return static_cast<long>(us / 1000 + 1); }

}  // namespace

struct HttpClient::Transfer {
  Transfer(CurlRef table, HttpRequest asked)
      : curl(std::move(table)), request(std::move(asked)), easy(curl->curl_easy_init()) {}
  ~Transfer() {
    if (easy != nullptr) curl->curl_easy_cleanup(easy);
    curl->curl_slist_free_all(headers);
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  template <class Value>
  bool set(CURLoption option, Value value) {
    return curl->curl_easy_setopt(easy, option, value) == CURLE_OK;
  }
  bool add_header(const std::string& line) {
    curl_slist* const longer = curl->curl_slist_append(headers, line.c_str());
    if (longer != nullptr) headers = longer;
    return longer != nullptr;
  }

  const CurlRef curl;
  const HttpRequest request;
  CURL* const easy;
  curl_slist* headers = nullptr;
  std::string body;
  std::array<char, CURL_ERROR_SIZE> error{};
};

Result<std::unique_ptr<HttpClient>> HttpClient::create(Config config) {
  CURLM* const multi = config.curl->curl_multi_init();
  if (multi == nullptr) return fail(VMEM_ERROR_UNSUPPORTED, "curl_multi_init failed: out of memory or descriptors");
  return std::unique_ptr<HttpClient>(new HttpClient(std::move(config), multi));
}

HttpClient::HttpClient(Config config, CURLM* multi) : config_(std::move(config)), multi_(multi) {
  (void)config_.curl->curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, kMostIdleConnections);
}

HttpClient::~HttpClient() {
  for (const auto& [easy, transfer] : transfers_) (void)config_.curl->curl_multi_remove_handle(multi_, easy);
  transfers_.clear();
  (void)config_.curl->curl_multi_cleanup(multi_);
}

void HttpClient::start(HttpRequest request) {
  auto transfer = std::make_unique<Transfer>(config_.curl, std::move(request));
  CURL* const easy = transfer->easy;
  if (easy == nullptr || !set_up(*transfer) || !set_up_trust(*transfer) || !set_up_sockets(*transfer) ||
      config_.curl->curl_multi_add_handle(multi_, easy) != CURLM_OK) {
    failed_to_start_.push_back({transfer->request.id, HttpFailure{.why = "libcurl refused to begin the request"}});
    return;
  }
  transfers_.emplace(easy, std::move(transfer));
}

bool HttpClient::set_up(Transfer& transfer) const {
  const HttpRequest& request = transfer.request;
  // "Expect:" leaves out a header for which the other side would have to answer before the body.
  bool ok = transfer.add_header("Content-Type: application/json") && transfer.add_header("Expect:") &&
            (request.token.empty() || transfer.add_header("Authorization: " + request.token));
  ok = ok && transfer.set(CURLOPT_URL, request.url.c_str()) && transfer.set(CURLOPT_HTTPHEADER, transfer.headers) &&
       transfer.set(CURLOPT_POSTFIELDS, request.body.c_str()) &&
       transfer.set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size())) &&
       transfer.set(CURLOPT_WRITEFUNCTION, &append) && transfer.set(CURLOPT_WRITEDATA, &transfer.body) &&
       transfer.set(CURLOPT_ERRORBUFFER, transfer.error.data()) &&
       transfer.set(CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1}) &&
       transfer.set(CURLOPT_TIMEOUT_MS, milliseconds(config_.limit_us)) &&
       transfer.set(CURLOPT_CONNECTTIMEOUT_MS, milliseconds(config_.connect_limit_us));
  // libcurl repeats a request, a POST too, if a connection that it had kept breaks without an
  // answer.
  if (request.once) ok = ok && transfer.set(CURLOPT_FRESH_CONNECT, 1L) && transfer.set(CURLOPT_FORBID_REUSE, 1L);
  return ok;
}

bool HttpClient::set_up_trust(Transfer& transfer) const {
  const TlsFiles& files = config_.tls;
  return transfer.set(CURLOPT_SSLVERSION, long{CURL_SSLVERSION_TLSv1_2}) && transfer.set(CURLOPT_SSL_VERIFYPEER, 1L) &&
         transfer.set(CURLOPT_SSL_VERIFYHOST, 2L) &&
         (files.authorities.empty() || (transfer.set(CURLOPT_CAINFO, files.authorities.c_str()) &&
                                        transfer.set(CURLOPT_CAPATH, static_cast<const char*>(nullptr)))) &&
         (files.certificate.empty() || (transfer.set(CURLOPT_SSLCERT, files.certificate.c_str()) &&
                                        transfer.set(CURLOPT_SSLKEY, files.key.c_str())));
}

bool HttpClient::set_up_sockets(Transfer& transfer) {
  // Otherwise a name service that does not answer would hold up all requests, and the end. Older
  // libraries lack it.
  (void)transfer.set(CURLOPT_QUICK_EXIT, 1L);
  return transfer.set(CURLOPT_NOSIGNAL, 1L) && transfer.set(CURLOPT_PROXY, "") && transfer.set(CURLOPT_NOPROXY, "*") &&
         transfer.set(CURLOPT_OPENSOCKETFUNCTION, &open_socket) && transfer.set(CURLOPT_OPENSOCKETDATA, &sockets_) &&
         transfer.set(CURLOPT_CLOSESOCKETFUNCTION, &close_socket) && transfer.set(CURLOPT_CLOSESOCKETDATA, &sockets_);
}

void HttpClient::run(std::vector<HttpResult>& results, int wake_descriptor, int most_wait_ms) {
  const std::size_t before = results.size();
  collect(results);
  if (results.size() != before) return;
  curl_waitfd wake{.fd = wake_descriptor, .events = CURL_WAIT_POLLIN, .revents = 0};
  if (const CURLMcode code = config_.curl->curl_multi_poll(multi_, &wake, 1, most_wait_ms, nullptr); code != CURLM_OK)
    wait_after(code, wake_descriptor);
  collect(results);
}

// Without libcurl, so that a lack of memory does not keep the thread busy.
void HttpClient::wait_after(CURLMcode code, int wake_descriptor) {
  if (const auto failure = failures_.next(); failure.logged)
    VMEM_LOG_WARN("registry: curl_multi_poll failed: {} ({} such failures)", config_.curl->curl_multi_strerror(code),
                  failure.count);
  pollfd wake{wake_descriptor, POLLIN, 0};
  (void)::poll(&wake, 1, kAfterFailureMs);
}

void HttpClient::collect(std::vector<HttpResult>& results) {
  for (HttpResult& each : failed_to_start_) results.push_back(std::move(each));
  failed_to_start_.clear();
  int running = 0, left = 0;
  (void)config_.curl->curl_multi_perform(multi_, &running);
  while (const CURLMsg* const message = config_.curl->curl_multi_info_read(multi_, &left)) {
    const CURLcode code = message->data.result;
    const auto found = transfers_.find(message->easy_handle);
    if (message->msg != CURLMSG_DONE || found == transfers_.end()) continue;
    (void)config_.curl->curl_multi_remove_handle(multi_, found->first);
    results.push_back({found->second->request.id, outcome(*found->second, code)});
    transfers_.erase(found);
  }
}

std::variant<HttpAnswer, HttpFailure> HttpClient::outcome(Transfer& transfer, CURLcode code) const {
  long status = 0, sent = 0;
  if (code == CURLE_OK && config_.curl->curl_easy_getinfo(transfer.easy, CURLINFO_RESPONSE_CODE, &status) == CURLE_OK)
    return HttpAnswer{.status = status, .body = std::move(transfer.body)};
  std::string why = transfer.error[0] != '\0' ? transfer.error.data() : config_.curl->curl_easy_strerror(code);
  if (code == CURLE_WRITE_ERROR) why = fmt::format("the answer has more than {} bytes", kMostBodyBytes);
  const bool known = config_.curl->curl_easy_getinfo(transfer.easy, CURLINFO_REQUEST_SIZE, &sent) == CURLE_OK;
  if (!known || sent != 0) return HttpFailure{.kind = HttpFailure::Kind::unanswered, .why = std::move(why)};
  return HttpFailure{.kind = is_about_trust(code) ? HttpFailure::Kind::untrusted : HttpFailure::Kind::unreachable,
                     .why = std::move(why)};
}

}  // namespace vmem::cluster
