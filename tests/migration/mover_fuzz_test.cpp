// Random schedules by seed: several launching threads, gates that open at any time, advice, frees
// and time. After every operation the mover's invariants hold; every read returns the last write.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <ostream>
#include <random>
#include <utility>

#include "migration/call_trace.hpp"
#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

struct FuzzCase {
  const char* name;
  MachineShape shape;
  std::uint32_t pages_in_all;
  int operations = 400;
  // Percent of acquires that only read. The more reads, the less advice and CPU access.
  std::uint32_t reads = 50;
  // Percent of acquires of whole regions in their order, as by a program in a loop.
  std::uint32_t in_order = 0;
};
void PrintTo(const FuzzCase& each, std::ostream* out) { *out << each.name; }

class MoverFuzz : public MoverTest, public ::testing::WithParamInterface<FuzzCase> {
 protected:
  struct Known {
    Region* region = nullptr;
    // By page, once all queued work is done.
    struct Bytes {
      unsigned char first, rest;  // of the first kPartBytes, and behind them
    };
    std::vector<std::optional<Bytes>> bytes;
  };
  struct Player {
    Actor* actor = nullptr;
    std::unique_ptr<Acquire> waiting;  // held once served
    bool held = false;
    std::unique_ptr<Gate> gate;
    Known* known = nullptr;
  };
  std::mt19937 random;
  std::deque<Known> regions;
  std::array<Player, 4> players;
  std::deque<bool> wrong;  // one per read
  std::optional<CallTrace> trace;

  std::uint32_t pick(std::uint32_t below) { return std::uint32_t(random() % below); }
  bool chance(std::uint32_t percent) { return pick(100) < percent; }

  Known* some_region() {
    if (regions.empty()) return nullptr;
    Known& known = regions[pick(std::uint32_t(regions.size()))];
    return known.region == nullptr ? nullptr : &known;
  }
  Range some_range(Known& known) {
    const std::uint32_t first = pick(known.region->page_count);
    const std::uint32_t count = 1 + pick(known.region->page_count - first);
    if (known.region->read_only) return reading(*known.region, first, count);
    Range range = chance(GetParam().reads) ? reading(*known.region, first, count)
                  : chance(20)             ? discarding(*known.region, first, count)
                                           : writing(*known.region, first, count);
    range.move_to_hbm = chance(30);
    range.needs_hbm = range.move_to_hbm && chance(30);
    return range;
  }
  bool anybody_in(const Known& known) {
    return std::ranges::any_of(players, [&](const Player& player) { return player.waiting && player.known == &known; });
  }
  // As a program orders conflicting work: a write excludes other holds, and streams wait for each
  // other.
  bool conflicts(const Known& known, const Range& range) {
    return std::ranges::any_of(players, [&](const Player& player) {
      if (!player.waiting || player.known != &known) return false;
      const Range& other = player.waiting->range;
      const bool overlap = other.first < range.first + range.count && range.first < other.first + other.count;
      return overlap && (range.access == Access::write || other.access == Access::write);
    });
  }

  void allocate_some() {
    std::uint32_t pages = 0;
    for (const Known& known : regions)
      pages += known.region == nullptr || known.region->read_only ? 0 : known.region->page_count;
    const std::uint32_t wanted = 1 + pick(5);
    // An allocation may rightly wait for an ending region, but only this thread can open the gate
    // that holds it.
    if (any_ending()) return;
    if (files != nullptr && chance(30)) return map_some(wanted);
    if (pages + wanted > GetParam().pages_in_all) return;
    Region& region = allocate(wanted);
    regions.push_back({&region, std::vector<std::optional<Known::Bytes>>(region.page_count)});
  }
  void map_some(std::uint32_t pages) {
    Region& region = map_file(pages);
    Known& known = regions.emplace_back(&region);
    for (std::uint32_t i = 0; i < pages; ++i) {
      const unsigned char value = ScriptedFiles::value_of(region.pages[i].spilled->slot);
      known.bytes.push_back(Known::Bytes{value, value});
    }
  }
  bool any_ending() const {
    return std::ranges::any_of(ended, [](Region* each) { return each->state.load() == RegionState::ending; });
  }
  std::vector<Region*> ended;

  void free_some() {
    Known* known = some_region();
    if (known == nullptr) return;
    const bool in_use = anybody_in(*known);
    const Status freed = free(*known->region, players[pick(4)].actor);
    EXPECT_EQ(freed.has_value(), !in_use);
    if (!freed) return;
    ended.push_back(known->region);
    known->region = nullptr;
  }
  void lender_turns() {
    if (lenders_own != nullptr) {
      EXPECT_TRUE(free(*std::exchange(lenders_own, nullptr)));
    } else if (const auto taken = try_allocate(1 + pick(shape.hbm_pages), 1)) {
      lenders_own = *taken;
    }
  }
  Region* lenders_own = nullptr;

  // The loop's next region: after the last one comes the first.
  Known* next_region() {
    for (std::size_t i = 0; i < regions.size(); ++i) {
      Known& known = regions[++last_in_order % regions.size()];
      if (known.region != nullptr) return &known;
    }
    return nullptr;
  }
  std::size_t last_in_order = 0;

  void acquire_some(Player& player) {
    const bool ordered = GetParam().in_order != 0 && chance(GetParam().in_order);
    if (ordered && player.waiting) return;
    const std::size_t place = last_in_order;
    Known* known = ordered ? next_region() : some_region();
    if (known == nullptr || player.waiting) return;
    const Range range = ordered ? reading(*known->region, 0, known->region->page_count) : some_range(*known);
    if (conflicts(*known, range)) {
      last_in_order = place;  // the loop goes on with it
      return;
    }
    player.known = known;
    player.waiting = begin(*player.actor, range);
    player.held = false;
  }
  void order_after_others(Player& player) {
    for (Player& other : players) {
      CUevent event = nullptr;
      if (&other == &player) continue;
      ASSERT_EQ((*driver)->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
      ASSERT_EQ((*driver)->cuEventRecord(event, other.actor->stream), CUDA_SUCCESS);
      ASSERT_EQ((*driver)->cuStreamWaitEvent(player.actor->stream, event, 0), CUDA_SUCCESS);
      ASSERT_EQ((*driver)->cuEventDestroy(event), CUDA_SUCCESS);
    }
  }
  void work(Player& player) {
    if (!player.waiting || player.held || !player.waiting->done()) return;
    const Status served = complete(*player.waiting);
    if (!served) {
      const bool upgrade = shape.protect && served.error().status == VMEM_ERROR_IN_USE;
      EXPECT_TRUE(upgrade || served.error().status == VMEM_ERROR_OUT_OF_MEMORY) << served.error().message;
      const Range& range = player.waiting->range;
      // What it was to discard may be gone (vmem_acquire).
      for (std::uint32_t i = range.first; range.discard && i < range.first + range.count; ++i)
        player.known->bytes[i].reset();
      player.waiting.reset();
      return;
    }
    player.held = true;
    order_after_others(player);
    if (chance(20) && !player.gate) player.gate = std::make_unique<Gate>(*driver, player.actor->stream);
    const Range range = player.waiting->range;
    for (std::uint32_t i = range.first; i < range.first + range.count; ++i) {
      auto& bytes = player.known->bytes[i];
      if (range.access == Access::write) {
        const auto value = static_cast<unsigned char>(random());
        const bool in_part = bytes && !range.discard && chance(30);
        bytes = {value, in_part ? bytes->rest : value};
        if (in_part) {
          fill_in_part(*player.actor, writing(*range.region, i), value);
        } else {
          fill(*player.actor, writing(*range.region, i), value);
        }
      } else if (bytes) {
        const auto* at = reinterpret_cast<const unsigned char*>(space->address_of(range.region->granule_of(i)));
        bool& bad = wrong.emplace_back(false);
        enqueue(*driver, player.actor->stream, [at, &bad, value = *bytes] {
          for (std::uint64_t k = 0; k < kPageBytes; k += 4093)
            bad = bad || at[k] != (k < kPartBytes ? value.first : value.rest);
        });
      }
    }
  }
  void release_some(Player& player) {
    if (!player.held) return;
    release(*player.actor, player.waiting->range);
    if (chance(30)) {
      EXPECT_TRUE(streams->close_epoch(*player.actor->record));
    }
    player.waiting.reset();
    player.held = false;
  }
  void advise_some() {
    static constexpr vmem_advice all[] = {VMEM_ADVISE_NORMAL,      VMEM_ADVISE_READ_MOSTLY, VMEM_ADVISE_PREFER_HBM,
                                          VMEM_ADVISE_PREFER_HOST, VMEM_ADVISE_IN_PLACE,    VMEM_ADVISE_EVICT,
                                          VMEM_ADVISE_EVICT};
    Known* known = some_region();
    if (known == nullptr) return;
    const Range range = some_range(*known);
    if (chance(30)) {
      prefetch(range);
    } else {
      EXPECT_TRUE(advise(range, all[pick(std::size(all))]));
    }
  }
  void touch_by_cpu() {
    Known* known = some_region();
    const bool gated = std::ranges::any_of(players, [](const Player& player) { return player.gate != nullptr; });
    if (known == nullptr || gated || anybody_in(*known)) return;
    // A page below needs a slot, but the other players may hold every slot.
    const bool held = std::ranges::any_of(players, [](const Player& player) { return player.waiting != nullptr; });
    if ((spill != nullptr || files != nullptr) && held) return;
    const std::uint32_t index = pick(known->region->page_count);
    if (chance(50) && !known->region->read_only) {
      const auto value = static_cast<unsigned char>(random());
      const Status written = cpu_write(*known->region, index, value);
      EXPECT_EQ(written ? VMEM_ERROR_OUT_OF_MEMORY : written.error().status, VMEM_ERROR_OUT_OF_MEMORY);
      if (written) known->bytes[index] = {value, value};
    } else if (known->bytes[index]) {
      expect_stored_parts(*known->region, index, known->bytes[index]->first, known->bytes[index]->rest);
    }
  }
  void one_operation() {
    Player& player = players[pick(4)];
    // The lender's own program allocates and frees.
    if (shape.devices > 1 && chance(4)) return lender_turns();
    switch (pick(12)) {
      case 0:
        allocate_some();
        break;
      case 1:
        if (chance(30)) free_some();
        break;
      case 2:
      case 3:
      case 4:
        acquire_some(player);
        break;
      case 5:
      case 6:
        work(player);
        break;
      case 7:
      case 8:
        release_some(player);
        break;
      case 9:
        if (chance(150 - GetParam().reads)) advise_some();
        break;
      case 10:
        if (chance(150 - GetParam().reads)) touch_by_cpu();
        break;
      default:
        if (chance(50)) player.gate.reset();
        now_us += chance(30) ? acquire_wait_us : 10;
        break;
    }
    steps(int(pick(3)));
  }
  // Returns how many pages were read straight into frames.
  std::uint64_t play(std::uint32_t seed, const MachineShape& machine) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    random.seed(seed);
    last_in_order = 0;
    start(machine);
    if (trace) start_trace();
    for (Player& player : players) player.actor = &actor();
    if (spill != nullptr) spill->polls_each = 1 + seed % 4;
    if (files != nullptr) files->polls_each = 1 + seed % 3;
    if (spill != nullptr && seed % 3 == 0) spill->wrong_bytes = 20;
    for (int i = 0; i < GetParam().operations && !HasFailure(); ++i) {
      one_operation();
      check();
      for (const Known& known : regions) {
        if (trace && known.region != nullptr) trace->state(*known.region);
      }
    }
    const std::uint64_t into_frames = spill != nullptr ? spill->into_frames : 0;
    wind_up();
    regions.clear();
    ended.clear();
    wrong.clear();
    finish();
    return into_frames;
  }
  void start_trace() {
    faults->on_call([this](std::string_view function) { trace->call(function); });
    const auto of = [this](const char* name) {
      return [this, name](const tiers::Transfer& transfer) { trace->submitted(name, transfer); };
    };
    tier->on_submit = of("host");
    if (lent != nullptr) lent->on_submit = of("peer");
    if (spill != nullptr) spill->on_submit = of("below");
    if (files != nullptr) files->on_submit = of("files");
  }
  void wind_up() {
    lenders_own = nullptr;
    for (Player& player : players) player.gate.reset();
    for (Player& player : players) {
      while (player.waiting && !player.held) {
        now_us += acquire_wait_us;
        steps();
        work(player);
        player.gate.reset();
      }
      release_some(player);
    }
    for (Player& player : players) finish_work(*player.actor);
    settle();
    for (Known& known : regions) {
      for (std::uint32_t i = 0; known.region != nullptr && i < known.region->page_count; ++i) {
        if (known.bytes[i]) expect_stored_parts(*known.region, i, known.bytes[i]->first, known.bytes[i]->rest);
      }
    }
    EXPECT_EQ(std::ranges::count(wrong, true), 0);
  }
};

// The GPU's threads decide how often what is tested happens: seeds go on until it has.
TEST_P(MoverFuzz, BooksBalanceAndBytesAreRight) {
  constexpr std::uint64_t kOften = 10;
  constexpr std::uint32_t kSeeds = 12, kSeedsMax = 100;
  const bool reads_into_frames = GetParam().shape.straight && GetParam().shape.spill_pages != 0;
  const bool looks_ahead = GetParam().in_order != 0 && GetParam().shape.spill_pages == 0;
  std::uint64_t into_frames = 0;
  const auto rarely = [&] {
    return (reads_into_frames && into_frames < kOften) || (looks_ahead && left_ahead < kOften);
  };
  for (std::uint32_t seed = 1; seed <= (rarely() ? kSeedsMax : kSeeds) && !HasFailure(); ++seed)
    into_frames += play(seed, GetParam().shape);
  EXPECT_FALSE(rarely()) << into_frames << " reads into frames, " << left_ahead
                         << " early departures: this shows nothing";
}

// On a machine whose GPU work is stepped, too. VMEM_TEST_SEEDS: how many seeds.
TEST_P(MoverFuzz, TheSameSeedMakesTheSameCalls) {
  MachineShape stepped = GetParam().shape;
  stepped.stepped = true;
  const char* const seeds = std::getenv("VMEM_TEST_SEEDS");
  const bool recorded = std::getenv("VMEM_TEST_TRACE") != nullptr;
  const std::uint32_t count = seeds == nullptr ? 2 : std::uint32_t(std::strtoul(seeds, nullptr, 0));
  for (std::uint32_t seed = 1; seed <= count && !HasFailure(); ++seed) {
    const auto traced = [&] {
      trace.emplace(fmt::format("{} {}", GetParam().name, seed));
      (void)play(seed, stepped);
      const std::pair result{trace->hash(), trace->events()};
      trace.reset();
      return result;
    };
    const auto first = traced();
    EXPECT_GT(first.second, std::uint64_t(GetParam().operations));
    if (recorded) continue;
    EXPECT_EQ(first, traced()) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, MoverFuzz,
    ::testing::Values(
        FuzzCase{"Roomy", {.hbm_pages = 8, .host_pages = 24}, 20},
        FuzzCase{"FullHost", {.hbm_pages = 6, .host_pages = 8}, 10},
        FuzzCase{"TinyHbm", {.hbm_pages = 2, .host_pages = 24}, 14},
        FuzzCase{"Spilling", {.hbm_pages = 4, .host_pages = 8, .spill_pages = 20}, 22},
        FuzzCase{"SpillingProtected", {.hbm_pages = 4, .host_pages = 8, .spill_pages = 20, .protect = true}, 22},
        FuzzCase{"SpillFull", {.hbm_pages = 4, .host_pages = 8, .spill_pages = 4}, 12},
        FuzzCase{"Lent", {.hbm_pages = 4, .host_pages = 16, .lent_pages = 5}, 18},
        FuzzCase{"LentAndTakenBack", {.devices = 2, .hbm_pages = 6, .host_pages = 16, .lent_pages = 6}, 15},
        FuzzCase{
            "LentAndSpilling", {.devices = 2, .hbm_pages = 6, .host_pages = 8, .spill_pages = 20, .lent_pages = 6}, 20},
        FuzzCase{
            "LentAndProtected", {.devices = 2, .hbm_pages = 6, .host_pages = 16, .lent_pages = 6, .protect = true}, 15},
        FuzzCase{"Files", {.hbm_pages = 4, .host_pages = 8, .files = true}, 8},
        FuzzCase{"FilesAndSpilling", {.hbm_pages = 4, .host_pages = 8, .spill_pages = 20, .files = true}, 16},
        FuzzCase{"FilesToFrames", {.hbm_pages = 4, .host_pages = 8, .files = true, .straight = true}, 8},
        FuzzCase{"BelowToFrames",
                 {.hbm_pages = 4, .host_pages = 4, .spill_pages = 30, .files = true, .straight = true},
                 30,
                 1600,
                 96},
        FuzzCase{"BelowToFramesWithThePolicy",
                 {.hbm_pages = 6, .host_pages = 4, .spill_pages = 30, .straight = true, .real_policy = true},
                 32,
                 1600,
                 96},
        FuzzCase{"FilesToFramesWithThePolicy",
                 {.hbm_pages = 4, .host_pages = 8, .files = true, .straight = true, .real_policy = true},
                 8,
                 800,
                 70},
        FuzzCase{"Protected", {.hbm_pages = 5, .host_pages = 24, .protect = true}, 16},
        FuzzCase{"RealPolicy", {.hbm_pages = 5, .host_pages = 24, .real_policy = true}, 16},
        FuzzCase{"LookAhead",
                 {.hbm_pages = 5,
                  .host_pages = 24,
                  .real_policy = true,
                  .look_ahead = true,
                  .undeclared = true,
                  .tries_in_place = true},
                 16,
                 1600,
                 80,
                 90},
        FuzzCase{"LookAheadAndSpilling",
                 {.hbm_pages = 5,
                  .host_pages = 8,
                  .spill_pages = 20,
                  .real_policy = true,
                  .look_ahead = true,
                  .undeclared = true,
                  .tries_in_place = true},
                 20,
                 200,
                 80,
                 90},
        FuzzCase{"LookAheadAtDeclaredRegions",
                 {.hbm_pages = 5, .host_pages = 24, .real_policy = true, .look_ahead = true},
                 16}),
    [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace vmem::migration
