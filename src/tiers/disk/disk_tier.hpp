// Pages in files on disks. They come from, and go to, slots of pinned host memory: the bytes there are read and written in place, by
// direct I/O, or, where a page is compressed, through staging buffers. One thread keeps the disks busy, others make and check checksums,
// compress and decompress; the mover waits for none of them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/log_limit.hpp"
#include "tiers/disk/frame_reader.hpp"
#include "tiers/disk/io_queue.hpp"
#include "tiers/disk/page_codec.hpp"
#include "tiers/disk/path_rate.hpp"
#include "tiers/disk/slot_files.hpp"
#include "tiers/disk/slot_header.hpp"
#include "tiers/disk/staging.hpp"
#include "tiers/tier.hpp"

namespace vmem::tiers {

class DiskTier final : public Tier {
 public:
  using MakeQueue = std::function<Result<std::unique_ptr<IoQueue>>(const std::vector<int>& files)>;
  struct Config {
    std::vector<StoreDirectory> directories;
    MakeQueue make_queue;
    std::uint32_t piece_bytes = 1u << 20;  // of one request to a disk, at most
    std::uint32_t workers = 1;             // threads for checksums and compression
    CompressionConfig compression;
    std::uint64_t tenant = 0;
    std::function<void()> on_ready;  // called by our threads when poll has something to report, or allocate to grant
    std::shared_ptr<FrameReader> frame_reader;          // null: pages come through host memory
    std::chrono::microseconds answer_wait{30'000'000};  // for a disk: in create, in finish without a transfer that ends
  };
  // Three quarters of the processors, 2 to 16: compressing takes what checksums leave.
  static std::uint32_t default_workers();
  // Errors: those of SlotFiles and of the queue; TIMEOUT.
  static Result<std::unique_ptr<DiskTier>> create(Config config);
  ~DiskTier() override;

  const TierInfo& info() const noexcept override { return info_; }
  TierUsage usage() const override;
  std::vector<std::uint64_t> places() const override;    // directories in service
  void expect(std::uint64_t, std::uint64_t) override {}  // space is made in chunks, faster than pages are written
  Result<SlotGrant> allocate(std::uint64_t page_bytes) override;
  void release(SlotId slot) override;
  bool reaches(SlotId slot, int device) const override;
  bool kept(SlotId slot) const override;
  Status submit(std::span<Transfer> transfers) override;
  Status poll(std::vector<Completion>& completions) override;
  void finish() noexcept override;
  bool quarantined() const noexcept override;
  std::string where(SlotId slot) const override;
  std::string describe() const;
  CompressionCounters compression() const { return codec_.counters(); }
  std::uint64_t punched_bytes() const;  // given back to the file systems from slots of compressed pages, so far

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  // A transfer on its way. It belongs to one thread at a time: the list that it is in says to which.
  struct Job {
    Transfer transfer;
    SlotFiles::Place place{};
    std::unique_ptr<std::byte, Free> header;  // kHeaderBytes, aligned; of a page as it is
    Staging::Buffer staged;                   // of a page that is compressed, or may be: header and stored bytes
    StoredPage page;                          // what is to be written, or what must be read
    bool known = false;                       // `page` of a load, or of a store if_changed, is what the slot holds
    std::uint64_t issued_bytes = 0;           // of header and page together
    std::uint32_t piece_bytes = 0;            // of each of its requests
    std::uint32_t under_way = 0;
    std::uint32_t tries = 0;
    std::uint64_t allocated_bytes = 0;  // of the slot, header included; behind them is a hole
    bool punch = false;                 // a store, once written, gives back what it leaves free of its slot
    bool written = false;               // it is, and only that is left to do
    bool unchanged = false;             // a store that had nothing to write
    bool damaged = false;               // a load that brought something else than the page
    std::optional<Error> error;         // the first
  };
  using JobPtr = std::unique_ptr<Job>;
  struct Piece {
    Job* job;
    Io io;
  };
  // How things are when a worker takes a job.
  struct Scene {
    compress::Conditions now;
    std::uint64_t write_measurements = 0;
  };
  explicit DiskTier(Config config);
  Status open();
  Status try_frames();
  PageIdentity identity_of(const Transfer& transfer) const;
  static std::uint64_t stored_io_bytes(const Job& job);
  static std::uint64_t slot_io_bytes(const Job& job) { return kHeaderBytes + job.transfer.bytes; }
  static bool is_compressed(const Job& job) { return job.page.codec != 0; }

  // The I/O thread.
  void run();
  bool take_inbox();
  void start(JobPtr job);
  void stage(JobPtr job);
  void unstage(Job& job);
  void serve_staging(Direction direction);
  void hand_to_worker(JobPtr job);
  void worked(JobPtr job);
  void begin_io(JobPtr job);
  void read_into_frame(JobPtr job);
  void pump();
  bool push_next_piece(Job& job);
  void push(const Piece& piece);
  PathRate& rate_of(Io::Kind kind);
  void note_rate(Io::Kind kind, std::uint64_t bytes, std::uint64_t moved_bytes);
  void tell_rates();
  void ended(const IoResult& result);
  void all_pieces_ended(Job& job);
  void try_again_or_fail(JobPtr job, Outcome outcome);
  void complete(JobPtr job, Outcome outcome);
  void tell_ready();
  JobPtr take_active(Job& job);
  void queue_failed(const Error& error);

  // Workers.
  void work();
  void work_on(Job& job, const Scene& scene, compress::Workspace& workspace);
  void check_load(Job& job, compress::Workspace& workspace);
  void prepare_store(Job& job, const Scene& scene, compress::Workspace& workspace);
  void punch(Job& job);
  Scene scene_for(const Job& job) const;
  void carry_out(SlotFiles::Change change);
  void writing_failed(std::uint32_t file, const Error& error);
  void note_read(const Job& job, Outcome outcome);
  std::optional<Error> refusal_of(const Job& job) const;
  void change_failed(const char* what, const Error& error);
  void want_growth(std::uint64_t page_bytes);
  void want_shrinking(std::optional<std::uint64_t> wanted_page_bytes = std::nullopt);

  Config config_;
  const TierInfo info_;
  std::unique_ptr<SlotFiles> files_;
  std::vector<std::unique_ptr<FrameReader::File>> for_frames_;  // of files_; null where frames cannot be read into
  std::unique_ptr<IoQueue> queue_;
  PageCodec codec_;

  // The I/O thread's.
  std::unordered_map<SlotId, StoredPage> stored_;
  std::vector<JobPtr> active_;  // with pieces to send, or under way
  std::deque<Job*> sending_;    // of these, with pieces to send
  std::deque<Piece> again_;     // what is left of pieces that ended short
  std::vector<Piece> pieces_;   // under way, by tag
  std::vector<std::uint32_t> free_tags_;
  PathRate writing_, reading_;
  LogLimit queue_failures_;
  std::uint64_t told_measurements_ = 0;                // of both
  std::uint64_t waited_until_ns_ = 0;                  // what has ended since the last time is seen together
  std::unordered_map<SlotId, std::uint64_t> punched_;  // slots with a hole, and what is allocated of them
  // As many pages of 32 MiB each way as are kept under way.
  static constexpr std::uint64_t kStagingBytes = std::uint64_t{33} << 20;
  struct Stage {
    Staging memory;
    std::deque<JobPtr> waiting;
  };
  Stage stages_[2];  // by direction: loads do not wait for what stores hold

  mutable std::mutex mutex_;          // below, and files_' lists
  std::unordered_set<SlotId> plain_;  // slots whose page can be read as it is
  std::condition_variable work_wanted_, job_ended_;
  std::deque<JobPtr> posted_, worked_;  // for the I/O thread
  std::deque<JobPtr> to_work_;          // for workers
  std::deque<SlotFiles::Change> changes_;
  std::vector<Completion> completions_;
  std::optional<Error> growth_error_;
  std::uint64_t jobs_ = 0;                              // not completed
  std::chrono::steady_clock::time_point last_moved_{};  // when one was submitted or completed
  std::uint32_t changing_ = 0;                          // workers that ask a file system for space, or give some back
  bool quarantined_ = false;
  std::uint64_t loads_ = 0, stores_ = 0;  // of them
  double write_bytes_s_ = 0, read_bytes_s_ = 0;
  std::uint64_t write_measurements_ = 0;
  std::uint64_t punched_bytes_ = 0;
  LogLimit change_failures_;  // of growth and of giving space back
  std::chrono::steady_clock::time_point full_since_{};
  bool growing_ = false;
  std::uint32_t shrinking_ = 0;  // changes under way that give space back
  bool stopping_ = false;
  std::thread io_thread_;
  std::vector<std::thread> workers_;
};

}  // namespace vmem::tiers
