#include "tiers/disk/page_sealer.hpp"

#include <cstring>

namespace vmem::tiers {
namespace {

std::span<std::byte, kHeaderBytes> block(std::byte* memory) {
  return std::span<std::byte, kHeaderBytes>(memory, kHeaderBytes);
}

}  // namespace

void PageSealer::seal(StoreJob& job, const Conditions& conditions, std::uint32_t worker) {
  const std::uint64_t began_ns = codec_.now_ns();
  const Checksum checksum = tiers::seal({job.transfer.host, job.transfer.bytes}, job.identity());
  if (job.transfer.if_changed && job.held && checksum == job.held->checksum) {
    job.stored = *job.held;
    job.content = StoreJob::Content::unchanged;
    return;
  }
  job.content = StoreJob::Content::to_write;
  job.stored = {job.identity(), job.transfer.bytes, 0, checksum};
  if (job.staged) compress(job, conditions, began_ns, worker);
  write_header(job.stored, block(job.compressed() ? job.staged.data() : job.header.get()));
}

void PageSealer::compress(StoreJob& job, const Conditions& conditions, std::uint64_t began_ns, std::uint32_t worker) {
  std::byte* const out = job.staged.data() + kHeaderBytes;
  const auto form = codec_.encode({.page = {job.transfer.host, job.transfer.bytes},
                                   .out = {out, job.transfer.bytes},
                                   .kind = job.transfer.kind,
                                   .now = conditions.path,
                                   .measurements = conditions.write_measurements,
                                   .other_s = double(codec_.now_ns() - began_ns) * 1e-9},
                                  workspaces_[worker]);
  job.stored.codec = std::uint8_t(form.codec);
  job.stored.stored_bytes = form.bytes;
  if (job.compressed()) std::memset(out + form.bytes, 0, job.stored_io_bytes() - form.bytes);
}

Result<PageSealer::Check> PageSealer::open(const DiskJob& job, std::uint32_t worker) {
  const std::span<std::byte> bytes(job.transfer.host, job.transfer.bytes);
  std::byte* const header = job.staged ? job.staged.data() : job.header.get();
  if (read_header(block(header)) != job.stored) return Check::damaged;
  if (job.compressed()) {
    const auto decoded = codec_.decode({.stored = {header + kHeaderBytes, job.stored.stored_bytes},
                                        .page = bytes,
                                        .codec = compress::CodecId(job.stored.codec),
                                        .kind = job.transfer.kind},
                                       workspaces_[worker]);
    if (!decoded && decoded.error().status == VMEM_ERROR_LOST) return Check::damaged;
    if (!decoded) return std::unexpected(decoded.error());
  }
  return tiers::seal(bytes, job.stored.identity) == job.stored.checksum ? Check::intact : Check::damaged;
}

}  // namespace vmem::tiers
