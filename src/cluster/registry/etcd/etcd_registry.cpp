#include "cluster/registry/etcd/etcd_registry.hpp"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include "base/memory_reserve.hpp"
#include "base/of_vmem.hpp"
#include "base/printable.hpp"
#include "base/signals_blocked.hpp"
#include "cluster/registry/etcd/http_client.hpp"
#include "cluster/registry/etcd/session.hpp"

namespace vmem::cluster {
namespace {

constexpr int kMostWaitMs = 1000;  // a safety net against a lost wake-up

Status check_file(const std::string& path, std::string_view what) {
  if (path.empty() || ::access(path.c_str(), R_OK) == 0) return {};
  const int code = errno;
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("the {} of the registry, '{}', cannot be read ({}); name a readable PEM file", what,
                          printable(path), std::strerror(code)),
              code);
}

Status check_files(const EtcdConfig& config) {
  const TlsFiles& files = config.tls;
  if (files.certificate.empty() != files.key.empty())
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("for the registry there is a {}; name both files or none",
                            files.key.empty() ? "certificate without its key" : "key without its certificate"));
  VMEM_TRY(check_file(files.authorities, "certificate authorities"));
  VMEM_TRY(check_file(files.certificate, "certificate"));
  return check_file(files.key, "key");
}

Status check_tls(const CurlTable& curl, const EtcdConfig& config) {
  if (!config.address.tls) return {};
  const auto* const version = curl.curl_version_info(CURLVERSION_NOW);
  if ((version->features & CURL_VERSION_SSL) != 0) return {};
  return fail(VMEM_ERROR_UNSUPPORTED,
              fmt::format("the registry asks for TLS, which libcurl {} was built without; install another libcurl, or "
                          "use etcd://",
                          version->version));
}

}  // namespace

// The thread, and what it shares with the owner's.
class EtcdRegistry::Worker {
 public:
  Worker(EtcdConfig config, OwnDescriptor wake, std::unique_ptr<HttpClient> http)
      : on_ready_(std::move(config.on_ready)),
        wake_(std::move(wake)),
        http_(std::move(http)),
        session_(std::move(config.address)) {}
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake();
    if (thread_.joinable()) thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The thread gets no signals: they are the program's, and SIGPIPE may come from writing to a
  // connection.
  void start() {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
  }
  void post(RequestId id, RegistryRequest request) {
    {
      const std::lock_guard lock(mutex_);
      posted_.emplace_back(id, std::move(request));
    }
    wake();
  }
  void poll(std::vector<Reply>& replies) {
    const std::lock_guard lock(mutex_);
    replies.insert(replies.end(), std::make_move_iterator(replies_.begin()), std::make_move_iterator(replies_.end()));
    replies_.clear();
  }

 private:
  using Posted = std::pair<RequestId, RegistryRequest>;

  void wake() const { (void)::eventfd_write(wake_.get(), 1); }

  void run() {
    ::prctl(PR_SET_NAME, "vmem-etcd");
    const OfVmem mark;
    MemoryReserve reserve;
    while (take_posted()) {
      (void)reserve.refill();
      deliver();
      exchange();
    }
  }
  // False: the registry ends.
  bool take_posted() {
    eventfd_t count = 0;
    (void)::eventfd_read(wake_.get(), &count);
    std::vector<Posted> posted;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return false;
      posted.swap(posted_);
    }
    for (auto& [id, request] : posted) session_.post(id, std::move(request));
    return true;
  }
  void exchange() {
    std::vector<HttpRequest> requests;
    session_.take_requests(requests);
    for (HttpRequest& each : requests) http_->start(std::move(each));
    std::vector<HttpResult> results;
    http_->run(results, wake_.get(), kMostWaitMs);
    for (const HttpResult& each : results) session_.finished(each);
  }
  void deliver() {
    std::vector<Reply> replies;
    session_.take_replies(replies);
    if (replies.empty()) return;
    {
      const std::lock_guard lock(mutex_);
      replies_.insert(replies_.end(), std::make_move_iterator(replies.begin()), std::make_move_iterator(replies.end()));
    }
    if (on_ready_) on_ready_();
  }

  const std::function<void()> on_ready_;
  const OwnDescriptor wake_;
  // The thread only.
  const std::unique_ptr<HttpClient> http_;
  EtcdSession session_;

  std::mutex mutex_;  // protects the members below
  std::vector<Posted> posted_;
  std::vector<Reply> replies_;
  bool stopping_ = false;

  std::thread thread_;
};

Result<std::unique_ptr<EtcdRegistry>> EtcdRegistry::create(EtcdConfig config) {
  VMEM_TRY(check_files(config));
  VMEM_ASSIGN(CurlRef curl, load_curl());
  VMEM_TRY(check_tls(*curl, config));
  OwnDescriptor wake{FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))};
  if (!wake) return fail(VMEM_ERROR_UNSUPPORTED, fmt::format("eventfd failed: {}", std::strerror(errno)), errno);
  VMEM_ASSIGN(auto http, HttpClient::create({.curl = std::move(curl),
                                             .tls = config.tls,
                                             .limit_us = config.try_us,
                                             .connect_limit_us = config.try_us * 2 / 5}));
  auto worker = std::make_unique<Worker>(std::move(config), std::move(wake), std::move(http));
  worker->start();
  return std::unique_ptr<EtcdRegistry>(new EtcdRegistry(std::move(worker)));
}

EtcdRegistry::EtcdRegistry(std::unique_ptr<Worker> worker) : process_(::getpid()), worker_(std::move(worker)) {}

EtcdRegistry::~EtcdRegistry() {
  // The thread does not exist in a child, and the numbers of its descriptors may be another file's.
  if (forked()) (void)worker_.release();
}

bool EtcdRegistry::forked() const noexcept { return ::getpid() != process_; }

RequestId EtcdRegistry::post(RegistryRequest request) {
  const RequestId id{++last_id_};
  if (!forked()) {
    worker_->post(id, std::move(request));
  } else {
    Error error{.status = VMEM_ERROR_FORKED,
                .message = "this process was forked, and its parent holds the connections to the registry; call exec"};
    forked_replies_.push_back({.request = id, .revision = {}, .what = std::move(error)});
  }
  return id;
}

void EtcdRegistry::poll(std::vector<Reply>& replies) {
  if (!forked()) return worker_->poll(replies);
  replies.insert(replies.end(), std::make_move_iterator(forked_replies_.begin()),
                 std::make_move_iterator(forked_replies_.end()));
  forked_replies_.clear();
}

}  // namespace vmem::cluster
