// Options of this module. Files for pages on disks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/option.hpp"

namespace vmem {

inline constexpr std::uint64_t kSmallestNvme = std::uint64_t{16} << 20;

// A directory for pages on a disk.
struct StoreDirectory {
  std::string path;
  std::optional<std::uint64_t> bytes;  // nullopt: half of the free space
};

// GPUDirect Storage. off: unused; automatic: only without copies through host memory; on: also with
// such copies.
enum class Gds : std::uint8_t { off, automatic, on };

struct DiskOptions {
  std::vector<StoreDirectory> nvme;  // --nvme: "off" (empty) or "/mnt/a:200GiB,/mnt/b"
  // --nvme-poll: on: a kernel thread polls for requests and disks
  bool nvme_poll = false;
  Gds gds = Gds::automatic;  // --gds: pages of files directly to HBM
  // --published-cache-disk: for copies of pages that other nodes published; "auto": see its help
  std::optional<std::uint64_t> published_cache_disk;
};

std::vector<Option<DiskOptions>> disk_options();

}  // namespace vmem
