// From a proved connection to channels: two nodes exchange the addresses of their UCX workers, each
// has the other's addresses tried by another process, and then opens the channels.
//
// Thread: the progressing one.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.hpp"
#include "base/log_limit.hpp"
#include "rdma/transport/ucx/ucx.hpp"
#include "rdma/transport/ucx/ucx_address_check.hpp"
#include "rdma/transport/ucx/ucx_links.hpp"

namespace vmem::rdma {

class UcxIntroductions {
 public:
  // All outlive this, as what the references name.
  struct Parts {
    const UcxConfig& config;
    const CryptoRef& crypto;
    const std::shared_ptr<TlsContext>& tls;  // null: Unix sockets
    const UcxContextRef& context;
    const UcxLoops& loops;
    UcxPeers& peers;
    UcxPoll& poll;
    UcxLinks& links;
  };
  UcxIntroductions(Parts parts, UcxAddressChecker checker) : parts_(parts), checker_(std::move(checker)) {}

  // A connection is proved, or failed.
  void admit(Admission::SetUp outcome);
  // A descriptor of the link is ready. False: the link is past its introduction, or waits for the
  // check of the addresses; its socket may have something.
  bool advance(UcxLink& link);
  // Ends links whose secret was removed from the file, or whose certificate is no longer valid.
  bool refresh_trust();

 private:
  void introduce(UcxLink& link, Admission::SetUp outcome);
  Status open_workers(UcxLink& link) const;
  void advance_exchange(UcxLink& link);
  void check_addresses(UcxLink& link);
  void advance_check(UcxLink& link);
  void establish(UcxLink& link);

  const Parts parts_;
  UcxAddressChecker checker_;
  LogLimit refused_;
  std::uint64_t next_refresh_us_ = 0;
};

}  // namespace vmem::rdma
