// The endpoints of the registry, and which one gets requests: the one that worked, until it fails.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/outage_log.hpp"
#include "base/status.hpp"
#include "cluster/registry/etcd/address.hpp"
#include "cluster/registry/etcd/http.hpp"

namespace vmem::cluster {

// What is logged of a registry that is away. Shared by connections, which go away together. Any
// thread.
class RegistryOutage {
 public:
  RegistryOutage() = default;
  explicit RegistryOutage(const Clock& clock) : log_(clock) {}
  static RegistryOutage& of_process();

  std::optional<OutageLog::Line> failed() {
    const std::lock_guard lock(mutex_);
    return log_.failed();
  }
  std::optional<OutageLog::Line> ended() {
    const std::lock_guard lock(mutex_);
    return log_.ended();
  }

 private:
  std::mutex mutex_;
  OutageLog log_;  // protected by mutex_
};

class Endpoints {
 public:
  // `outage` outlives this.
  explicit Endpoints(const EtcdAddress& address, RegistryOutage& outage = RegistryOutage::of_process());

  std::size_t count() const noexcept { return urls_.size(); }
  std::size_t current() const noexcept { return current_; }
  const std::string& url(std::size_t endpoint) const { return urls_[endpoint]; }

  void answered(std::size_t endpoint);
  // The next endpoint becomes the current one, if this one is.
  void failed(std::size_t endpoint, const std::string& why);

 private:
  std::vector<std::string> urls_;
  std::size_t current_ = 0;
  bool works_ = false;  // the current one has answered
  RegistryOutage& outage_;
};

// The tries of one request: at most one at each endpoint.
class Attempts {
 public:
  // The endpoint for the next try; none if each has failed.
  std::optional<std::size_t> next(const Endpoints& endpoints) const;
  void failed(const Endpoints& endpoints, std::size_t endpoint, const HttpFailure& failure);
  // Whether a try may have reached etcd.
  bool unanswered() const noexcept { return unanswered_; }
  // What became of all tries.
  Error error(const std::string& asked) const;

 private:
  std::vector<std::size_t> tried_;
  std::string failures_;
  bool only_untrusted_ = true, unanswered_ = false;
};

}  // namespace vmem::cluster
