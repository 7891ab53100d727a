// Pages of files that are mapped, read-only: they are loaded into slots of pinned host memory, in place, by direct I/O where the file
// system has it, and nothing is ever stored. One thread keeps the disks busy, from the first mapping on; the mover waits for nothing.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/aside.hpp"
#include "base/log_limit.hpp"
#include "tiers/disk/pieces.hpp"
#include "tiers/file/mapped_file.hpp"
#include "tiers/page_source.hpp"
#include "tiers/tier.hpp"

namespace vmem::tiers {

class FileTier final : public Tier {
 public:
  struct Config {
    // Of plain descriptors.
    std::function<Result<std::unique_ptr<IoQueue>>()> make_queue;
    std::uint32_t piece_bytes = 1u << 20;               // of one request to a disk, at most
    std::function<void()> on_ready;                     // called by our thread when poll has something to report
    std::shared_ptr<FrameReader> frame_reader;          // null: pages come through host memory
    std::chrono::microseconds answer_wait{30'000'000};  // for a disk: in map, in finish without a transfer that ends
  };
  explicit FileTier(Config config) : config_(std::move(config)) {}
  ~FileTier() override;

  // Any thread. Pages begin at multiples of 4096 bytes of the file. The source may not outlive the tier. `bytes` of 0: to the end.
  // Errors: those of MappedFile and, the first time, of the queue; TIMEOUT.
  Result<std::shared_ptr<PageSource>> map(const std::string& path, std::uint64_t offset, std::uint64_t bytes);

  const TierInfo& info() const noexcept override { return info_; }
  TierUsage usage() const override { return {}; }  // none of it is ours
  void expect(std::uint64_t, std::uint64_t) override {}
  Result<SlotGrant> allocate(std::uint64_t) override { return SlotGrant{}; }  // sources have slots, nobody else
  void release(SlotId) override {}                                            // with their source
  bool reaches(SlotId slot, int device) const override;
  Status submit(std::span<Transfer> transfers) override;
  Status poll(std::vector<Completion>& completions) override;
  void finish() noexcept override;
  bool quarantined() const noexcept override;
  std::string where(SlotId slot) const override;
  std::string describe() const;  // REQUIRES: something was mapped

 private:
  class Source;
  // Of each page's bytes, as they were read first; our thread's.
  using Sums = std::vector<std::optional<std::uint64_t>>;
  // One page's load. `file` is kept open by it.
  struct Job {
    Transfer transfer;
    std::shared_ptr<MappedFile> file;
    std::shared_ptr<Sums> sums;
    std::uint32_t page = 0;            // of the mapping
    std::uint64_t begin = 0, end = 0;  // of the page's bytes in the file, both within the range
    std::uint64_t issued_bytes = 0;
    std::uint32_t piece_bytes = 0;  // of each of its requests
    std::uint32_t under_way = 0;
    std::uint32_t tries = 0;
    bool direct = false;         // how this try reads
    std::optional<Error> error;  // the first
  };
  using JobPtr = std::unique_ptr<Job>;
  struct Layout {
    std::shared_ptr<MappedFile> file;
    std::uint64_t page_bytes = 0;
    std::uint32_t count = 0;
    std::shared_ptr<Sums> sums;
  };

  Status start();
  Result<std::shared_ptr<MappedFile>> open(const std::string& path, std::uint64_t offset, std::uint64_t bytes);
  Status try_frames(MappedFile& file) const;
  std::unexpected<Error> unanswered(const std::string& path) const;
  Result<SlotId> lay_out(const std::shared_ptr<MappedFile>& file, std::uint64_t page_bytes, std::uint32_t count);
  void forget(SlotId first);
  JobPtr job_for(const Transfer& transfer) const;
  const Layout& layout_of(SlotId slot, SlotId& first) const;

  // Our thread.
  void run();
  bool take_posted();
  void begin(JobPtr job);
  void read_into_frame(JobPtr job);
  void has_come(JobPtr job);
  void pump();
  bool push_next_piece(Job& job);
  void ended(const Pieces::Ended& piece);
  static std::uint64_t bytes_to_read(const Job& job);
  void all_pieces_ended(Job& job);
  static std::optional<Error> compare_with_first(const Job& job);
  void complete(JobPtr job, Outcome outcome);
  void queue_failed(const Error& error);

  static constexpr TierInfo info_{.name = "file"};
  const Config config_;
  const std::shared_ptr<Aside> closing_ = std::make_shared<Aside>();  // files that are mapped no more

  // Our thread's.
  std::optional<Pieces> pieces_;
  LogLimit queue_failures_;
  std::vector<JobPtr> active_;  // with pieces to send, or under way
  std::deque<Job*> sending_;    // of these, with pieces to send

  mutable std::mutex mutex_;  // below
  std::unique_ptr<IoQueue> queue_;
  std::condition_variable job_ended_;
  std::map<SlotId, Layout> layouts_;  // by first slot
  std::deque<JobPtr> posted_;
  std::deque<JobPtr> come_;  // read into frames, or not
  std::vector<Completion> completions_;
  std::uint64_t jobs_ = 0;                              // not completed
  std::chrono::steady_clock::time_point last_moved_{};  // when one was submitted or completed
  bool quarantined_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace vmem::tiers
