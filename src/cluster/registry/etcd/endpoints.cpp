#include "cluster/registry/etcd/endpoints.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"

namespace vmem::cluster {

RegistryOutage& RegistryOutage::of_process() {
  static RegistryOutage outage;
  return outage;
}

Endpoints::Endpoints(const EtcdAddress& address, RegistryOutage& outage) : outage_(outage) {
  for (const std::string& each : address.endpoints)
    urls_.push_back(fmt::format("{}://{}", address.tls ? "https" : "http", each));
}

void Endpoints::answered(std::size_t endpoint) {
  if (const auto outage = outage_.ended())
    VMEM_LOG_WARN("registry: etcd at {} answers again, after {} failures in {} s", urls_[endpoint], outage->failures,
                  outage->seconds);
  if (endpoint != current_ || works_) return;
  works_ = true;
  VMEM_LOG_INFO("registry: using etcd at {}", urls_[current_]);
}

void Endpoints::failed(std::size_t endpoint, const std::string& why) {
  if (endpoint != current_) return;
  works_ = false;
  current_ = (current_ + 1) % urls_.size();
  const auto outage = outage_.failed();
  if (!outage) return;
  const std::string then =
      urls_.size() > 1 ? fmt::format("using {} from now on", urls_[current_]) : "there is no other";
  const std::string so_far =
      outage->failures == 1 ? "" : fmt::format(" ({} such failures in {} s)", outage->failures, outage->seconds);
  VMEM_LOG_WARN("registry: etcd at {}: {}; {}{}", urls_[endpoint], why, then, so_far);
}

std::optional<std::size_t> Attempts::next(const Endpoints& endpoints) const {
  for (std::size_t i = 0; i < endpoints.count(); ++i) {
    const std::size_t endpoint = (endpoints.current() + i) % endpoints.count();
    if (std::ranges::find(tried_, endpoint) == tried_.end()) return endpoint;
  }
  return std::nullopt;
}

void Attempts::failed(const Endpoints& endpoints, std::size_t endpoint, const HttpFailure& failure) {
  tried_.push_back(endpoint);
  failures_ += fmt::format("{}{}: {}", failures_.empty() ? "" : "; ", endpoints.url(endpoint), failure.why);
  only_untrusted_ = only_untrusted_ && failure.kind == HttpFailure::Kind::untrusted;
  unanswered_ = unanswered_ || failure.kind == HttpFailure::Kind::unanswered;
}

Error Attempts::error(const std::string& asked) const {
  if (only_untrusted_)
    return {.status = VMEM_ERROR_INVALID_OPTION,
            .message = fmt::format("registry: {}: {}: check the files of certificates, and that the address has the "
                                   "names that they are for",
                                   asked, failures_)};
  return {.status = VMEM_ERROR_TIMEOUT,
          .message = fmt::format("registry: {}: {}: check that etcd (3.4 or later) runs there, with its JSON gateway",
                                 asked, failures_)};
}

}  // namespace vmem::cluster
