// What a home has asked of keepers and has no answer to yet. Each is asked again until it answers
// or is over; a copy to be fetched also has a deadline. Answers to anything else are void, so a
// late "yes" of an earlier round makes nobody a keeper.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "cluster/directory/directory_config.hpp"
#include "cluster/directory/home_pages.hpp"

namespace vmem::cluster::directory {

class KeepDesk {
 public:
  enum class Kind : std::uint8_t {
    has,      // keep it if you have it
    fetch,    // keep it, and fetch it
    release,  // do not keep it any longer
  };
  struct Asked {
    Kind kind = Kind::has;
    std::uint64_t round = 0;
    std::vector<NodeId> sources;
    std::uint64_t next_us = 0, until_us = UINT64_MAX;
  };
  using Key = std::pair<std::uint32_t, std::uint32_t>;  // page, place
  struct Batch {
    std::uint32_t place = 0;
    Kind kind = Kind::has;
    std::uint64_t round = 0;
    std::vector<NodeId> sources;
    Runs pages;
  };

  void ask(std::uint32_t page, std::uint32_t place, Asked asked);
  // What was asked and not answered yet; then it is answered.
  std::optional<Kind> answer(std::uint32_t page, std::uint32_t place, std::uint64_t round);
  void released(std::uint32_t page, std::uint32_t place, std::uint64_t round);
  bool asked(std::uint32_t page, Kind kind) const;
  bool asks(std::uint32_t page, std::uint32_t place) const { return asked_.contains({page, place}); }
  std::size_t count(Kind kind) const noexcept { return counts_[std::size_t(kind)]; }

  void drop_page(std::uint32_t page, Kind kind);
  // Who was asked whether it has the page, and has not answered, is asked to keep nothing instead.
  void release_rest(std::uint32_t page, std::uint64_t round);
  // The pages of which something was asked there.
  std::vector<std::uint32_t> drop_place(std::uint32_t place);

  // What is to be sent now, the first time or again.
  std::vector<Batch> due(std::uint64_t now_us, std::uint64_t resend_us);
  // Takes out what has passed its deadline.
  std::vector<std::pair<Key, Kind>> expire(std::uint64_t now_us);
  std::uint64_t due_us() const;

 private:
  using Place = std::map<Key, Asked>::iterator;
  Place erase(Place each);

  std::map<Key, Asked> asked_;
  std::array<std::size_t, 3> counts_{};  // by kind
};

}  // namespace vmem::cluster::directory
