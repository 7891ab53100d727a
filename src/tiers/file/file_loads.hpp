// Loads of pages of mapped files, on the file tier's thread. A page is checked after it was read:
// its file must be as it was when it was mapped.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "tiers/async/io_thread.hpp"
#include "tiers/file/file_layouts.hpp"
#include "tiers/io/frame_reader.hpp"

namespace vmem::tiers {

class FileLoads {
 public:
  // `frame_reader`: null if all loads go through host memory. All outlive this.
  FileLoads(std::uint32_t piece_bytes, FrameReader* frame_reader, IoThread& thread, TransferLedger& ledger)
      : piece_bytes_(piece_bytes), frame_reader_(frame_reader), thread_(thread), ledger_(ledger) {}

  // Any thread. REQUIRES: the ledger has begun transfer.id.
  void post(const Transfer& transfer, FilePage page);

 private:
  struct Job {
    Transfer transfer;
    FilePage page;
    std::uint32_t tries = 0;
    bool direct = false;  // this try uses direct I/O
  };
  using JobPtr = std::unique_ptr<Job>;

  void start(JobPtr job);
  void read_into_frame(JobPtr job);
  void frame_loaded(JobPtr job, Status status);
  void read(JobPtr job);
  void read_ended(JobPtr job, std::optional<PageIo::Failure> failure);
  void retry_or_fail(JobPtr job, Error error);
  static Error error_of(const Job& job, const PageIo::Failure& failure);
  static std::optional<Error> compare_with_first(const Job& job);
  void complete(const Job& job, Outcome outcome, Error error = {});

  const std::uint32_t piece_bytes_;
  FrameReader* const frame_reader_;
  IoThread& thread_;
  TransferLedger& ledger_;
};

}  // namespace vmem::tiers
