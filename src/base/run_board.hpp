// What the processes under `vmem run` tell it: memory that they share with it. Each process that
// starts a runtime takes an entry and fills it in; `vmem run` reads all entries at the end.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"

namespace vmem {

// Names the board's file for the processes under `vmem run`.
inline constexpr const char* kRunVariable = "VMEM_RUN";

struct RunFigures {
  std::uint64_t launches, launches_that_waited, wait_us, in_place_launches;
  std::uint64_t hbm_budget_bytes, host_budget_bytes;
  std::uint64_t into_hbm_bytes, out_of_hbm_bytes;
  std::uint64_t to_disk_and_nodes_bytes, from_disk_and_nodes_bytes;
};

class RunBoard {
 public:
  enum class State : std::uint32_t { unused, started, ended, refused };
  struct Entry {
    std::atomic<State> state;
    RunFigures figures;  // valid once the state is `ended`
  };
  struct Summary {
    std::uint32_t processes = 0;  // that started a runtime
    // of these: killed, still running, or more than the board holds
    std::uint32_t without_figures = 0;
    bool refused = false;  // a process could not start a runtime
    RunFigures total{};
  };

  // Errors: INTERNAL.
  static Result<RunBoard> create();
  // The board that the environment names; nullopt if there is none, or it is gone.
  static std::optional<RunBoard> of_environment();
  RunBoard(RunBoard&& other) noexcept;
  RunBoard& operator=(RunBoard&&) = delete;
  ~RunBoard();

  // The value of kRunVariable, as long as this process and object live.
  std::string path() const;
  // Takes an entry for this process, for its lifetime. Null if the board is full; the summary then
  // counts the process all the same.
  Entry* claim();
  Summary summary() const;

 private:
  static constexpr std::size_t kEntries = 512;
  struct Shared {
    std::atomic<std::uint32_t> claimed;
    std::array<Entry, kEntries> entries;
  };
  static_assert(std::atomic<State>::is_always_lock_free && std::is_trivially_destructible_v<Shared>);

  RunBoard(FileDescriptor file, Shared* shared) : file_(std::move(file)), shared_(shared) {}
  static Result<RunBoard> map(FileDescriptor file);

  FileDescriptor file_;
  Shared* shared_;
};

}  // namespace vmem
