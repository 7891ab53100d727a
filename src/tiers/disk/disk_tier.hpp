// Pages in files on disks. They come from, and go to, slots of pinned host memory: the bytes there are read and written in place, by
// direct I/O. One thread keeps the disks busy, others make and check checksums; the mover waits for none of them.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tiers/disk/io_queue.hpp"
#include "tiers/disk/slot_files.hpp"
#include "tiers/disk/slot_header.hpp"
#include "tiers/tier.hpp"

namespace vmem::tiers {

class DiskTier final : public Tier {
 public:
  using MakeQueue = std::function<Result<std::unique_ptr<IoQueue>>(const std::vector<int>& files)>;
  struct Config {
    std::vector<StoreDirectory> directories;
    MakeQueue make_queue;
    std::uint32_t piece_bytes = 1u << 20;  // of one request to a disk
    std::uint32_t workers = 1;             // threads for checksums
    std::uint64_t tenant = 0;
    std::function<void()> on_ready;  // called by our threads when poll has something to report, or allocate to grant
  };
  // Errors: those of SlotFiles and of the queue.
  static Result<std::unique_ptr<DiskTier>> create(Config config);
  ~DiskTier() override;

  const TierInfo& info() const noexcept override { return info_; }
  TierUsage usage() const override;
  void expect(std::uint64_t, std::uint64_t) override {}  // space is made in chunks, faster than pages are written
  Result<SlotGrant> allocate(std::uint64_t page_bytes) override;
  void release(SlotId slot) override;
  Status submit(std::span<Transfer> transfers) override;
  Status poll(std::vector<Completion>& completions) override;
  void finish() noexcept override;
  std::string describe() const;

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  // A transfer on its way. It belongs to one thread at a time: the list that it is in says to which.
  struct Job {
    Transfer transfer;
    SlotFiles::Place place{};
    std::unique_ptr<std::byte, Free> header;  // kHeaderBytes, aligned
    StoredPage page;                          // what is to be written, or what must be read
    bool known = false;                       // `page` of a load, or of a store if_changed, is what the slot holds
    std::uint64_t issued_bytes = 0;           // of header and page together
    std::uint32_t under_way = 0;
    std::uint32_t tries = 0;
    bool unchanged = false;      // a store that had nothing to write
    bool damaged = false;        // a load that brought something else than the page
    std::optional<Error> error;  // the first
  };
  using JobPtr = std::unique_ptr<Job>;
  struct Piece {
    Job* job;
    Io io;
  };
  explicit DiskTier(Config config) : config_(std::move(config)) {}
  Status open();
  PageIdentity identity_of(const Transfer& transfer) const;

  // The I/O thread.
  void run();
  bool take_inbox();
  void start(JobPtr job);
  void worked(JobPtr job);
  void begin_io(JobPtr job);
  void pump();
  bool push_next_piece(Job& job);
  void push(const Piece& piece);
  void ended(const IoResult& result);
  void all_pieces_ended(Job& job);
  void try_again_or_fail(JobPtr job, Outcome outcome);
  void complete(JobPtr job, Outcome outcome);
  JobPtr take_active(Job& job);
  void queue_failed(const Error& error);

  // Workers.
  void work();
  void work_on(Job& job) const;
  void carry_out(SlotFiles::Change change);
  void want_growth(std::uint64_t page_bytes);
  void want_shrinking();

  static constexpr TierInfo info_{.name = "nvme"};
  Config config_;
  std::unique_ptr<SlotFiles> files_;
  std::unique_ptr<IoQueue> queue_;

  // The I/O thread's.
  std::unordered_map<SlotId, StoredPage> stored_;
  std::vector<JobPtr> active_;  // with pieces to send, or under way
  std::deque<Job*> sending_;    // of these, with pieces to send
  std::deque<Piece> again_;     // what is left of pieces that ended short
  std::vector<Piece> pieces_;   // under way, by tag
  std::vector<std::uint32_t> free_tags_;

  mutable std::mutex mutex_;  // below, and files_' lists
  std::condition_variable work_wanted_, job_ended_;
  std::deque<JobPtr> posted_, worked_;  // for the I/O thread
  std::deque<JobPtr> to_work_;          // for workers
  std::deque<SlotFiles::Change> changes_;
  std::vector<Completion> completions_;
  std::optional<Error> growth_error_;
  std::uint64_t jobs_ = 0;  // not completed
  std::chrono::steady_clock::time_point full_since_{};
  bool growing_ = false;
  bool stopping_ = false;
  std::thread io_thread_;
  std::vector<std::thread> workers_;
};

}  // namespace vmem::tiers
