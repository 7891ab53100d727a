// What a home knows of each page: who promised to keep it, who said that it has a copy, and who is
// fetching one. 24 bytes a page. Places are those of the region's participants.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "cluster/directory/directory_message.hpp"

namespace vmem::cluster::directory {

using Places = std::uint64_t;  // a bitmap of participants
constexpr Places place_bit(std::uint32_t place) { return Places{1} << place; }

enum class HomeState : std::uint8_t {
  free,
  held,     // has a keeper
  seeking,  // no keeper is left, and participants are asked to become one
  unkept,   // none could; there are cachers, which may drop it at any time
  lost,     // nobody has it
};

class HomePages {
 public:
  static constexpr std::uint32_t kMostComing = 3;
  static constexpr std::uint8_t kNobody = 0xff;
  struct Page {
    Places keepers = 0, cachers = 0;
    std::array<std::uint8_t, kMostComing> coming{kNobody, kNobody, kNobody};  // in order
    HomeState state = HomeState::lost;
  };
  static_assert(sizeof(Page) == 24);

  explicit HomePages(std::uint32_t pages) : pages_(pages) {}

  std::uint32_t size() const noexcept { return std::uint32_t(pages_.size()); }
  const Page& operator[](std::uint32_t page) const { return pages_[page]; }
  bool contains(const Run& run) const noexcept { return run.end() <= pages_.size(); }

  std::optional<std::uint32_t> first_lost() const;
  void set_free(std::uint32_t page) { pages_[page].state = HomeState::free; }
  void set_seeking(std::uint32_t page) { pages_[page].state = HomeState::seeking; }
  // Nobody keeps it: unkept or lost.
  void set_without_keeper(std::uint32_t page) {
    pages_[page].state = pages_[page].cachers != 0 ? HomeState::unkept : HomeState::lost;
  }
  void add_keeper(std::uint32_t page, std::uint32_t place);
  void add_cacher(std::uint32_t page, std::uint32_t place);
  void make_cacher(std::uint32_t page, std::uint32_t place);  // of a keeper
  // Whether a page may name the participant. Spares scans for those that never had one.
  bool names(std::uint32_t place) const noexcept { return (named_at_all_ & place_bit(place)) != 0; }
  bool names(std::uint32_t page, std::uint32_t place) const;
  // No page names it any more.
  void forgotten(std::uint32_t place) { named_at_all_ &= ~place_bit(place); }
  // The participant has no copy. Returns whether the page has lost its last keeper, or the last
  // cacher of a page that nobody keeps.
  bool remove(std::uint32_t page, std::uint32_t place);
  void come(std::uint32_t page, std::uint32_t place);

  // Whom `reader` should ask, in order: at most two that may have a copy, or had begun to fetch one
  // before the reader; then keepers. Each by what it has been named for. Counts the first one.
  std::vector<std::uint32_t> sources(std::uint32_t page, std::uint32_t reader, Places except);
  // A participant that joins has been named as often as the one that was named least.
  void join(std::uint32_t place, Places others);

 private:
  std::vector<std::uint32_t> by_load(Places places) const;
  static void leave(Page& page, std::uint32_t place);

  std::vector<Page> pages_;
  Places named_at_all_ = 0;
  std::array<std::uint64_t, kMostParticipants> named_{};  // as the first source
};

}  // namespace vmem::cluster::directory
