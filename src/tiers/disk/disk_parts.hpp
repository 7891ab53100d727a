// What loads and stores of a disk tier share. All of it outlives them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "tiers/async/io_thread.hpp"
#include "tiers/async/transfer_ledger.hpp"
#include "tiers/async/workers.hpp"
#include "tiers/disk/disk_space.hpp"
#include "tiers/disk/metered_queue.hpp"
#include "tiers/disk/page_sealer.hpp"
#include "tiers/disk/slot_contents.hpp"
#include "tiers/io/frame_reader.hpp"

namespace vmem::tiers {

// The directories' files as a FrameReader reads them.
struct FrameFiles {
  std::shared_ptr<FrameReader> reader;                    // null: all loads go through host memory
  std::vector<std::unique_ptr<FrameReader::File>> files;  // by file; null: no direct loads
};

struct DiskParts {
  TransferLedger& ledger;
  DiskSpace& space;
  SlotContents& contents;
  PageSealer& sealer;
  IoThread& thread;
  Workers& workers;
  const FrameFiles& frames;
  const MeteredQueue* meter = nullptr;  // null: without compression
  std::uint32_t worker_count = 1;
  std::uint32_t piece_bytes = 0;    // maximum per request to a disk
  std::uint64_t staging_bytes = 0;  // of loads, and of stores

  std::uint32_t request_bytes(std::uint32_t file) const { return std::min(piece_bytes, space.request_bytes(file)); }
};

}  // namespace vmem::tiers
