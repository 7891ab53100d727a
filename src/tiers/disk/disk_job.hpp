// Transfers of the disk tier on their way. A job has one owner at a time, and only that thread
// touches it: the tier's thread, a worker, or a directory's thread.
#pragma once

#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "tiers/async/page_io.hpp"
#include "tiers/disk/slot_files.hpp"
#include "tiers/disk/slot_header.hpp"
#include "tiers/disk/staging.hpp"
#include "tiers/tier.hpp"

namespace vmem::tiers {

inline constexpr std::uint32_t kDiskTries = 3;  // of a transfer that a disk fails or damages

struct DiskJob {
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  using HeaderBlock = std::unique_ptr<std::byte, Free>;  // kHeaderBytes, aligned
  static HeaderBlock make_header() {
    return HeaderBlock(static_cast<std::byte*>(std::aligned_alloc(kHeaderBytes, kHeaderBytes)));
  }

  DiskJob(const Transfer& of, const SlotFiles::Place& at, HeaderBlock block)
      : transfer(of), place(at), header(std::move(block)) {}

  Transfer transfer;
  SlotFiles::Place place;
  HeaderBlock header;      // for uncompressed pages
  Staging::Buffer staged;  // header and stored bytes, if (maybe) compressed
  StoredPage stored;       // to write, or expected by a load
  std::uint32_t tries = 0;

  PageIdentity identity() const { return {transfer.page, transfer.version, transfer.bytes}; }
  bool compressed() const { return stored.codec != 0; }
  std::uint64_t stored_io_bytes() const { return (stored.stored_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes; }
  std::uint64_t io_bytes() const { return kHeaderBytes + stored_io_bytes(); }
  std::uint64_t slot_bytes() const { return kHeaderBytes + transfer.bytes; }
  PageIo::Page io(Io::Kind kind, std::uint32_t most_request_bytes) const;
};

struct StoreJob : DiskJob {
  using DiskJob::DiskJob;

  // unchanged: the slot holds these bytes already, and the caller asked to copy only changed ones.
  enum class Content : std::uint8_t { unknown, unchanged, to_write };
  Content content = Content::unknown;
  std::optional<StoredPage> held;     // what the slot holds, if of the same identity
  std::uint64_t allocated_bytes = 0;  // of the slot, from the header on
};

// The error of a page's I/O in the file of directory `path`.
Error io_error(const PageIo::Failure& failure, const std::string& path);

}  // namespace vmem::tiers
