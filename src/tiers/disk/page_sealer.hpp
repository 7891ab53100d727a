// Turns pages into the bytes of their slots and back: checksum, header and codec. Called by
// workers, each with its own number.
#pragma once

#include <cstdint>
#include <vector>

#include "tiers/disk/disk_job.hpp"
#include "tiers/disk/page_codec.hpp"

namespace vmem::tiers {

class PageSealer {
 public:
  PageSealer(CompressionConfig compression, std::uint32_t workers)
      : codec_(std::move(compression), kHeaderBytes), workspaces_(workers) {}

  bool compresses() const { return codec_.on(); }
  std::uint64_t now_ns() const { return codec_.now_ns(); }
  CompressionCounters counters() const { return codec_.counters(); }

  // What the decision whether to compress depends on.
  struct Conditions {
    compress::Conditions path;
    std::uint64_t write_measurements = 0;
  };
  // Sets the job's page and content, and writes the header. Compresses only staged pages.
  void seal(StoreJob& job, const Conditions& conditions, std::uint32_t worker);

  enum class Check : std::uint8_t { intact, damaged };
  // Of the bytes read; decompresses them into the transfer's memory. Errors: those of PageCodec.
  Result<Check> open(const DiskJob& job, std::uint32_t worker);

 private:
  void compress(StoreJob& job, const Conditions& conditions, std::uint64_t began_ns, std::uint32_t worker);

  PageCodec codec_;
  std::vector<compress::Workspace> workspaces_;  // by worker
};

}  // namespace vmem::tiers
