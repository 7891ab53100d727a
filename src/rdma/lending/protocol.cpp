#include "rdma/lending/protocol.hpp"

namespace vmem::rdma::wire {

std::string_view answer_words(Answer answer) noexcept {
  switch (answer) {
    case Answer::done:
      return "done";
    case Answer::again:
      return "it is busy there";
    case Answer::full:
      return "it has no room left";
    case Answer::unknown:
      return "it has no such page";
    case Answer::damaged:
      return "the checksum differs";
    case Answer::failed:
      return "its disk or its GPU failed, or it lacked memory";
    case Answer::refused:
      return "it refused the request";
    case Answer::drains:
      return "it is being drained, and lends to no further node";
    case Answer::same:
      return "the bytes are here already";
  }
  return "an unknown answer";
}

std::string_view medium_words(Medium medium) noexcept {
  switch (medium) {
    case Medium::memory:
      return "memory";
    case Medium::disk:
      return "disk";
    case Medium::hbm:
      return "HBM";
  }
  return "an unknown medium";
}

}  // namespace vmem::rdma::wire
