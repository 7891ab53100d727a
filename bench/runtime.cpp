#include "bench/runtime.hpp"

#include <fmt/format.h>

namespace vmem::bench {

Status check(vmem_status status) {
  if (status == VMEM_OK) return {};
  return fail(status, fmt::format("{} ({})", vmem_last_error(), vmem_status_string(status)));
}

Result<Session> Session::start(const Settings& settings, const Sizes& sizes, const Gpu& gpu) {
  std::vector<std::pair<std::string, std::string>> named = {
      {"driver", gpu.driver().path()},
      {"devices", std::to_string(gpu.ordinal())},
      {"hbm", std::to_string(sizes.hbm_bytes)},
      {"host", std::to_string(sizes.host_bytes)},
  };
  if (settings.page_bytes) named.emplace_back("page", std::to_string(*settings.page_bytes));
  named.insert(named.end(), settings.runtime_options.begin(), settings.runtime_options.end());
  std::vector<vmem_option> options;
  options.reserve(named.size());
  for (const auto& [name, value] : named) options.push_back({name.c_str(), value.c_str()});
  VMEM_TRY(check(vmem_init(options.data(), options.size())));
  return Session();
}

Session::~Session() {
  if (running_) vmem_shutdown();
}

Result<Region> Region::allocate(std::uint64_t bytes, int device, CUstream stream) {
  void* address = nullptr;
  VMEM_TRY(check(vmem_malloc(&address, bytes, device, stream)));
  Region region(address, bytes, 0);
  vmem_pointer_info info{};
  VMEM_TRY(check(vmem_query(address, &info)));
  region.page_bytes_ = info.page_bytes;
  return region;
}

Result<Region> Region::map_file(const std::string& path, int device) {
  void* address = nullptr;
  VMEM_TRY(check(vmem_map_file(&address, path.c_str(), 0, 0, device)));
  Region region(address, 0, 0);
  vmem_pointer_info info{};
  VMEM_TRY(check(vmem_query(address, &info)));
  region.bytes_ = info.bytes;
  region.page_bytes_ = info.page_bytes;
  return region;
}

Result<Region> Region::open(const std::string& name, int device) {
  constexpr std::uint64_t kMostUs = 30'000'000;
  void* address = nullptr;
  std::uint64_t bytes = 0;
  VMEM_TRY(check(vmem_open(&address, &bytes, name.c_str(), device, kMostUs)));
  Region region(address, bytes, 0);
  region.is_published_ = true;
  vmem_pointer_info info{};
  VMEM_TRY(check(vmem_query(address, &info)));
  region.page_bytes_ = info.page_bytes;
  return region;
}

Status Region::publish(const std::string& name, std::uint32_t copies) {
  const vmem_publish_options options{.copies = copies, .reserved = 0, .expires_s = 0, .wait_us = 0, .readers = nullptr};
  VMEM_TRY(check(vmem_publish(address_, name.c_str(), &options)));
  is_published_ = true;
  return {};
}

Region::~Region() {
  if (address_ == nullptr) return;
  if (is_published_)
    vmem_close(address_, nullptr, 0);
  else
    vmem_free(address_, nullptr);
}

Result<vmem_statistics> read_statistics() {
  vmem_statistics statistics{};
  statistics.struct_bytes = sizeof(statistics);
  VMEM_TRY(check(vmem_stats(&statistics)));
  return statistics;
}

Result<vmem_published_statistics> read_published_statistics() {
  vmem_published_statistics statistics{};
  statistics.struct_bytes = sizeof(statistics);
  VMEM_TRY(check(vmem_published_stats(&statistics)));
  return statistics;
}

Result<vmem_statistics> quiet_statistics() {
  VMEM_TRY(check(vmem_quiesce()));
  return read_statistics();
}

Traffic& Traffic::operator+=(const Traffic& other) {
  in_bytes += other.in_bytes;
  out_bytes += other.out_bytes;
  peer_in_bytes += other.peer_in_bytes;
  peer_out_bytes += other.peer_out_bytes;
  spilled_bytes += other.spilled_bytes;
  recalled_bytes += other.recalled_bytes;
  remote_out_bytes += other.remote_out_bytes;
  remote_in_bytes += other.remote_in_bytes;
  dropped_bytes += other.dropped_bytes;
  in_place_acquires += other.in_place_acquires;
  waits += other.waits;
  mover_busy_us += other.mover_busy_us;
  return *this;
}

nlohmann::json size_options(const Settings& settings, const Sizes& sizes) {
  return {{"ratio", sizes.ratio},
          {"hbm_bytes", sizes.hbm_bytes},
          {"host_bytes", sizes.host_bytes},
          {"peer_bytes", sizes.peer_bytes},
          {"nvme_bytes", sizes.nvme_bytes},
          {"remote_bytes", sizes.remote_bytes},
          {"working_set_bytes", sizes.working_set_bytes},
          {"seed", settings.seed},
          {"repeats", settings.repeats}};
}

Traffic traffic_between(const vmem_statistics& before, const vmem_statistics& after) {
  return {.in_bytes = after.migrated_in_bytes - before.migrated_in_bytes,
          .out_bytes = after.migrated_out_bytes - before.migrated_out_bytes,
          .peer_in_bytes = after.peer_in_bytes - before.peer_in_bytes,
          .peer_out_bytes = after.peer_out_bytes - before.peer_out_bytes,
          .spilled_bytes = after.spilled_bytes - before.spilled_bytes,
          .recalled_bytes = after.recalled_bytes - before.recalled_bytes,
          .remote_out_bytes = after.remote_stored_bytes - before.remote_stored_bytes,
          .remote_in_bytes = after.remote_fetched_bytes - before.remote_fetched_bytes,
          .dropped_bytes = after.dropped_bytes - before.dropped_bytes,
          .in_place_acquires = after.in_place_acquires - before.in_place_acquires,
          .waits = after.acquire_waits - before.acquire_waits,
          .mover_busy_us = after.mover_busy_us - before.mover_busy_us};
}

}  // namespace vmem::bench
