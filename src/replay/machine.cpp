#include "replay/machine.hpp"

#include <algorithm>
#include <utility>

#include "migration/policy/look_ahead.hpp"
#include "migration/policy/second_chance.hpp"

namespace vmem::replay {
namespace {

// How long a sleeping mover takes to begin when it is asked, and a thread to go on when it is
// answered.
constexpr std::uint64_t kWakeNs = 8'000;
constexpr std::uint64_t kPollNs = 25'000, kLaterNs = 1'000'000;
constexpr std::uint64_t kStepNs = 2'000;  // beside the driver's calls
constexpr std::uint64_t kUseNs = 1'000;   // to read a use, and to tell the policies
// At which slots in a peer's memory are made.
constexpr std::uint64_t kPeerBytesPerS = 1'000'000'000'000;

}  // namespace

Machine::Machine(const Setting& setting)
    : setting_(setting),
      gpu_({.devices = 1,
            .hbm_bytes = setting.hbm_bytes,
            .costs = setting.costs,
            .link = setting.chain.link,
            .peer_link = setting.chain.peer_link,
            .timeline = setting.timeline}) {}

Result<std::unique_ptr<Machine>> Machine::start(const Setting& setting) {
  std::unique_ptr<Machine> machine(new Machine(setting));
  VMEM_TRY(machine->start());
  return machine;
}

void Machine::make_tiers() {
  const Chain& chain = setting_.chain;
  const auto near = [&](VirtualGpu::Far far, std::uint64_t bytes, std::uint64_t made_bytes_per_s) {
    return std::make_unique<VirtualHost>(VirtualHost::Config{
        .gpu = gpu_, .contents = contents_, .budget_bytes = bytes, .made_bytes_per_s = made_bytes_per_s, .far = far});
  };
  host_ = near(VirtualGpu::Far::host, chain.host_bytes, setting_.pinned_bytes_per_s);
  if (chain.peer_bytes != 0) peer_ = near(VirtualGpu::Far::peer, chain.peer_bytes, kPeerBytesPerS);
  if (chain.below_bytes == 0) return;
  below_ = std::make_unique<VirtualBelow>(VirtualBelow::Config{.gpu = gpu_,
                                                               .host = *host_,
                                                               .budget_bytes = chain.below_bytes,
                                                               .in_bytes_per_s = chain.below_in_bytes_per_s,
                                                               .out_bytes_per_s = chain.below_out_bytes_per_s,
                                                               .timeline = setting_.timeline});
}

Status Machine::start() {
  options_.devices = {0};
  const auto driver = gpu_.driver();
  VMEM_ASSIGN(devices_, runtime::Devices::open(driver, options_.devices));
  VMEM_ASSIGN(reserved_, runtime::ReservedSpace::reserve(driver, options_));
  const runtime::Device& device = devices_->front();
  streams_ = std::make_unique<migration::StreamTable>(
      driver, std::vector<migration::StreamTable::Device>{{device.handle, device.context}});
  slots_ = std::make_unique<runtime::ThreadSlots>(*devices_);
  make_tiers();

  mover_ = std::make_unique<migration::Mover>(mover_config(device));
  return start_program();
}

migration::MoverConfig Machine::mover_config(const runtime::Device& device) {
  migration::MoverConfig config;
  config.driver = gpu_.driver();
  config.space = &space();
  config.threads = &slots_->registry();
  config.streams = streams_.get();
  config.backing = host_.get();
  config.in_place = host_.get();
  config.devices.push_back({device.handle, device.context, setting_.hbm_bytes, 1, {}});
  if (peer_) {
    config.devices.back().lenders = {0};
    config.peer_tiers.push_back({.tier = peer_.get(),
                                 .in_place = peer_.get(),
                                 .set_budget = [](std::uint64_t) {},
                                 .lender = {},
                                 .most_bytes = setting_.chain.peer_bytes});
  }
  config.spill = below_.get();
  if (below_)
    config.spill_policy =
        migration::make_second_chance_policy({.prefetch_pages = 0, .hbm_bytes = {setting_.chain.host_bytes}});
  const std::vector<std::uint64_t> hbm{setting_.hbm_bytes};
  config.policy = migration::make_second_chance_policy({.prefetch_pages = options_.prefetch_pages, .hbm_bytes = hbm});
  if (setting_.look_ahead) config.policy = migration::make_look_ahead_policy({hbm}, std::move(config.policy));
  config.page_bytes = setting_.page_bytes;
  config.tries_in_place = setting_.try_in_place;
  config.shares_pages = setting_.share_pages;
  config.now_us = [this] { return gpu_.now_ns() / 1000; };
  config.serve = [this](const migration::Request& request) { serve(request); };
  return config;
}

// What the program's calls reach.
Status Machine::start_program() {
  const auto driver = gpu_.driver();
  backing_ = std::make_unique<runtime::Backing>(options_, *devices_, space(), *mover_, *streams_, *slots_);
  VMEM_ASSIGN(small_, runtime::Suballocator::create(backing_->slabs, backing_->work, space().base(), space().bytes()));
  addresses_ = std::make_unique<runtime::AddressResolver>(space(), *small_, *devices_);
  readiness_ = std::make_unique<runtime::Readiness>(*driver, *mover_);
  files_ = std::make_unique<tiers::FileTier>(tiers::FileTier::Config{});
  allocations_ = std::make_unique<runtime::Allocations>(*devices_, space(), backing_->regions, backing_->freed,
                                                        backing_->arena, *small_, *slots_, *files_);
  blocks_ = std::make_unique<runtime::UndeclaredBlocks>(runtime::UndeclaredBlocks::Parts{.driver = *driver,
                                                                                         .devices = *devices_,
                                                                                         .space = space(),
                                                                                         .mover = *mover_,
                                                                                         .regions = backing_->regions,
                                                                                         .freed = backing_->freed,
                                                                                         .arena = backing_->arena,
                                                                                         .small = *small_,
                                                                                         .work = backing_->work,
                                                                                         .addresses = *addresses_,
                                                                                         .allocations = *allocations_});
  launches_ = std::make_unique<runtime::Launches>(runtime::Launches::Parts{.driver = *driver,
                                                                           .space = space(),
                                                                           .mover = *mover_,
                                                                           .streams = *streams_,
                                                                           .slots = *slots_,
                                                                           .small = *small_,
                                                                           .readiness = *readiness_,
                                                                           .gate = backing_->gate,
                                                                           .recorder = nullptr,
                                                                           .traced_epoch = 1},
                                                  runtime::Launches::Order::concurrent, 0);
  return {};
}

// The members end in the order in which they call each other.
Machine::~Machine() {
  if (!mover_) return;
  migration::EndAllRequest end;
  if (mover_->call(end) && backing_) backing_->slabs.regions_ended();
}

std::uint64_t Machine::frames_made() { return mover_->parts().devices[0].hbm.frames_created(); }

void Machine::uses_logged(std::size_t uses) { unread_ns_ += uses * kUseNs; }

// The GPU's clock is the mover's during a step.
void Machine::step() {
  using Next = migration::Mover::Next;
  gpu_.set_now(mover_ns_);
  gpu_.spend(kStepNs + std::exchange(unread_ns_, 0));
  const Next next = mover_->step_or_wait();
  stepped_ns_ = gpu_.now_ns();
  busy_ns_ += stepped_ns_ - mover_ns_;
  if (setting_.timeline != nullptr) setting_.timeline->push_back({Track::mover, 0, mover_ns_, stepped_ns_});
  sleeps_ = next != Next::again;
  // Nobody wakes it between two calls of the program: then it looks whether there is work.
  mover_ns_ = stepped_ns_ + (!sleeps_ ? 0 : next == Next::soon ? kPollNs : kLaterNs);
  // Tiers with threads of their own wake it.
  if (sleeps_ && below_) mover_ns_ = std::min(mover_ns_, std::max(stepped_ns_, below_->next_end_ns()));
}

void Machine::catch_up() {
  const std::uint64_t program_ns = gpu_.now_ns();
  while (mover_ns_ <= program_ns) step();
  gpu_.set_now(program_ns);
}

// A thread has woken the mover, and waits for it.
void Machine::serve(const migration::Request& request) {
  const std::uint64_t asked_ns = gpu_.now_ns();
  if (sleeps_) mover_ns_ = std::min(mover_ns_, std::max(asked_ns + kWakeNs, stepped_ns_));
  mover_ns_ = std::max(mover_ns_, asked_ns);
  while (!request.done()) step();
  gpu_.set_now(std::max(asked_ns, stepped_ns_) + kWakeNs);
}

}  // namespace vmem::replay
