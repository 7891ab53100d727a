// Where pages of published regions can be fetched: the seam between the tier that loads them and
// the directory. Called on the node's thread; no call waits.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/node.hpp"
#include "base/status.hpp"
#include "rdma/transport/transport.hpp"
#include "sharing/shared_page.hpp"

namespace vmem::sharing {

// Without sources: the page was never written, and reads as zeros.
struct PageSources {
  std::vector<NodeId> nodes;  // in the order in which to ask them
  std::uint32_t fetch = 0;    // the finder's number for what is fetched from them
  bool last = false;          // one node has the page, and that is not its publisher
};

class PageFinder {
 public:
  virtual ~PageFinder() = default;
  // `found` is called once, at any time, on the node's thread. Errors: LOST, no node has the page
  // any more; TIMEOUT, naming the node that did not answer by the deadline.
  using Found = std::move_only_function<void(Result<PageSources>)>;
  virtual void find(const SharedPage& page, std::uint64_t deadline_us, Found found) = 0;
  // The page is in this node's memory now. False: what was fetched by this number must not be used,
  // as other nodes were told that this one does not have the page; it is to be found again.
  virtual bool landed(const SharedPage& page, std::uint32_t fetch) = 0;
  // The page is not in this node's memory any more: dropped, or lost. Any thread.
  virtual void gone(const SharedPage& page) = 0;
  // The node does not have it, or sent something else.
  virtual void missing(const SharedPage& page, NodeId node) = 0;

  // The connection to the node. 0: there is none now; one is being made.
  virtual rdma::PeerId connection(NodeId node) = 0;
};

}  // namespace vmem::sharing
