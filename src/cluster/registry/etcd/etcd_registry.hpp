// The registry of a cluster: etcd 3.4 or later, through its JSON gateway, by libcurl. Keys lie
// below /vmem/CLUSTER/. A thread of its own talks to etcd.
//
// A request is tried at one endpoint after the other, as long as the earlier tries certainly
// changed nothing or another one does no harm; each try has a time limit. If no endpoint gave an
// answer, its reply is an Error with status TIMEOUT: for a commit or a grant, the request may have
// been carried out if it was sent.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>

#include "cluster/registry/etcd/address.hpp"
#include "cluster/registry/etcd/http.hpp"
#include "cluster/registry/registry.hpp"

namespace vmem::cluster {

struct EtcdConfig {
  EtcdAddress address;
  TlsFiles tls;
  std::uint64_t try_us = 5'000'000;  // limit of one try at one endpoint
  // poll() has replies. Called by the registry's thread, without a lock.
  std::function<void()> on_ready;
};

class EtcdRegistry final : public Registry {
 public:
  // Does not wait for etcd. Errors: UNSUPPORTED without a libcurl that can do it; INVALID_OPTION
  // for a file that cannot be read.
  static Result<std::unique_ptr<EtcdRegistry>> create(EtcdConfig config);
  // Drops the requests in flight; they may still be carried out.
  ~EtcdRegistry() override;
  EtcdRegistry(const EtcdRegistry&) = delete;
  EtcdRegistry& operator=(const EtcdRegistry&) = delete;

  // In a forked child each reply is an Error with status FORKED.
  RequestId post(RegistryRequest request) override;
  void poll(std::vector<Reply>& replies) override;

 private:
  class Worker;
  explicit EtcdRegistry(std::unique_ptr<Worker> worker);
  bool forked() const noexcept;

  const pid_t process_;
  std::unique_ptr<Worker> worker_;
  std::vector<Reply> forked_replies_;
  std::uint64_t last_id_ = 0;
};

}  // namespace vmem::cluster
