// Finds the blocks that are used faster where they are, in host memory, than in HBM: those of which
// the GPU uses a small part here and there, as of a table of embeddings. Nothing tells which part a
// launch reads, but of such a block most pages change in part while they are in HBM. So these are
// tried: the time of a number of uses while the block goes back and forth is compared with the time
// of as many uses in place (docs/decisions/0116). Pure: no clock, no knowledge of pages. Methods
// may throw std::bad_alloc; then what they were told is lost.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace vmem::migration {

class InPlaceTrials {
 public:
  using Block = std::uint32_t;  // its first granule
  // Blocks to use in place from now on, and blocks to move to HBM when they are used next.
  struct Changes {
    std::vector<Block> to_host, to_hbm;
    bool empty() const { return to_host.empty() && to_hbm.empty(); }
  };

  // At most so many bytes are used in place.
  explicit InPlaceTrials(std::uint64_t most_bytes) : most_bytes_(most_bytes) {}

  // A page of a block of granules up to `end` left HBM, and was compared with its copy.
  // `block_bytes`: of all pages of the block.
  struct Compared {
    Block block;
    std::uint32_t end;
    int device;
    std::uint64_t block_bytes, page_bytes, changed_bytes;
  };
  void compared(const Compared& page);
  // So many bytes of it came into HBM.
  void fetched(Block block, std::uint64_t bytes) {
    if (block == clock_) fetched_bytes_ += bytes;
  }
  // In the order of use. True: tell when the GPU has done this use, by measured(), in that order.
  bool used(Block block, std::uint16_t stream, std::uint64_t now_us);
  // `now_us`: when the GPU had done the oldest use that used() asked about.
  Changes measured(std::uint64_t now_us);
  // Call often while knows_any(): ends what takes much too long.
  Changes look(std::uint64_t now_us);
  // What lay at these granules was freed. Its pages are no longer used in place.
  Changes ended(std::uint32_t first, std::uint32_t end);
  // The block at these granules must not be used in place any more.
  Changes dropped(std::uint32_t first, std::uint32_t end);

  // Windows are being measured.
  bool measuring() const { return state_ != State::idle && idle_uses_ == 0; }
  bool knows_any() const { return !known_.empty(); }
  // Its uses have to be told.
  bool knows(Block block) const { return known_.contains(block); }

 private:
  static constexpr Block kNone = ~Block{0};
  // A window is a multiple of kUnit uses, so that of a block with 1, 2, 3 or 6 uses a period it
  // holds whole periods. Before a trial, kRounds times the block's bytes come in during a window.
  static constexpr std::uint32_t kUnit = 6, kUsesMax = 64 * kUnit, kRounds = 3;
  static constexpr std::uint64_t kShortestUs = 50'000;
  static constexpr std::uint32_t kWindows = 2, kWindowsChecked = 7;

  struct Known {
    std::uint32_t end = 0;
    int device = 0;
    std::uint16_t stream = 0;  // of the last use
    std::uint64_t bytes = 0, compared = 0;
    std::uint64_t in_part = 0;   // of `compared`: pages that had changed in part
    std::uint32_t failures = 0;  // trials in vain: each makes the next one rarer
    std::uint32_t uses = 0;      // in the trial
    bool settled = false;        // tried now, or kept in place
    bool complete() const;
    bool sparse() const { return 2 * in_part > compared; }
    bool qualifies() const { return !settled && complete() && sparse(); }
  };
  struct Kept {
    std::vector<Block> blocks;
    Block clock;  // kNone: it was freed, and the others stay as they are
    std::uint32_t window_uses;
    std::uint64_t before_us;  // of a window, while the blocks went back and forth
    std::uint32_t checks = 0;
  };
  enum class State : std::uint8_t { idle, before, in_place, checking };

  bool count_use();
  void watch(Block block, State state);
  void watch_next();
  void give_up_clock();
  Changes window_ended(std::uint64_t took_us, std::uint64_t now_us);
  Changes begin_trial(std::uint64_t now_us);
  void choose_group();
  Changes end_trial(bool faster);
  Changes keep();
  Changes checked(std::uint64_t took_us);
  void begin_anew(Block block, std::uint32_t failures);
  void remove(Block block);
  Changes stop_trial_of(Block block);
  Block at(std::uint32_t granule) const;
  std::uint64_t kept_bytes() const;

  const std::uint64_t most_bytes_;
  std::map<Block, Known> known_;
  std::vector<std::vector<Block>> to_try_;  // parts of a group that was not faster as a whole
  std::vector<Kept> kept_;                  // the one to be checked comes first

  State state_ = State::idle;
  Block clock_ = kNone;       // whose uses are counted
  std::vector<Block> group_;  // being tried; before a trial, empty: all that qualify by then
  std::uint64_t fetched_bytes_ = 0;
  std::uint32_t idle_uses_ = 0;    // that pass before a check
  bool begun_ = false;             // the first window has
  std::uint32_t uses_ = 0;         // in the current window
  std::uint32_t window_uses_ = 0;  // 0: not known yet
  std::uint32_t asked_ = 0;        // ends of windows that are to be measured
  std::uint32_t stale_ = 0;        // of these, of an earlier clock
  std::uint32_t skipped_ = 0;      // windows that do not count: they began before the last change
  std::uint64_t last_us_ = 0;      // end of the last window; 0: none
  std::vector<std::uint64_t> windows_us_;
  std::uint64_t before_us_ = 0;  // the shortest window before the trial
  std::uint64_t late_us_ = 0;    // when what goes on takes too long; 0: look() decides
};

}  // namespace vmem::migration
