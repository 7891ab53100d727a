// What this node has of published regions: the seam between the server of pages and who keeps them,
// the mover in a program and the shelf in a daemon.
#pragma once

#include <expected>
#include <functional>
#include <string>

#include "sharing/shared_page.hpp"

namespace vmem::sharing {

// A page's bytes, which neither move nor change until `give_back` is called, or destroyed without.
// Any thread may do either.
struct LentPage {
  rdma::ConstBytes bytes;
  rdma::PageAead::Tag tag{};
  std::move_only_function<void()> give_back;
};

class PageHolder {
 public:
  virtual ~PageHolder() = default;

  // Whether nodes of this tenant may read the region. Called on the node's thread.
  virtual bool may_read(pagetable::Serial serial, const std::string& tenant) const = 0;

  // Called on the node's thread, and does not wait. `lent`, which does not throw, is called once,
  // at any time, on any thread, with the page, or: unknown, this node does not have it; again, it
  // is on its way here; failed or damaged, its copy cannot be read.
  using Lent = std::move_only_function<void(std::expected<LentPage, rdma::wire::Answer>)>;
  virtual void lend(const SharedPage& page, Lent lent) = 0;
};

}  // namespace vmem::sharing
