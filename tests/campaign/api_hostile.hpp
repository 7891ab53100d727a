// The hostile half of an API fuzzer thread: calls every function of vmem.h with wrong or right
// arguments, on its own and other threads' allocations.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "campaign/api_caller.hpp"
#include "campaign/api_plan.hpp"
#include "campaign/api_world.hpp"
#include "runtime/emulated_gpu.hpp"

namespace vmem::test {

inline constexpr std::size_t kFileBytes = std::size_t{4} << 20;  // size of the mapped file
// Answers for ranges that can be used.
inline constexpr Statuses kServed = any_of(VMEM_OK, VMEM_ERROR_OUT_OF_MEMORY, VMEM_ERROR_TIMEOUT, VMEM_ERROR_IN_USE);

std::string hex(std::uintptr_t address);
// Words that a refusal of the range may contain.
std::vector<std::string> names_of(const Target& target);

class Hostile {
 public:
  Hostile(const ApiPlan& plan, World& world, EmulatedGpu& gpu, Caller& call, std::uint64_t seed,
          const std::string& file);
  void step();
  // Releases the thread's remaining holds and closes its streams.
  void release_all();

  // Without a runtime, calls each function once with a formerly valid pointer; each must return
  // `status`.
  static void expect_refused_everywhere(Caller& call, Target target, vmem_status status);

 private:
  struct Stream {
    CUstream handle = nullptr;
    int device = 0;
    bool real = true;
  };
  struct Wanted {
    std::size_t bytes = 0;
    int device = 0;
    bool has_out = true;
  };

  void allocate();
  void map_file();
  void free();
  void acquire();
  void acquire_absurdly();
  void release();
  void release_held(std::size_t index);
  void release_wrongly();
  void close_stream();
  void prefetch();
  void advise();
  void copy();
  void fill();
  void read();
  void write();
  void query();
  void others();
  void capture();

  // Allowed answers of a call on the range; `served`: those if the range can be used.
  Statuses allowed(const Target& target, Statuses served) const;
  bool writable(const Target& target) const;  // or sure to be refused
  Statuses allowed(const std::vector<vmem_range>& ranges) const;
  Wanted any_wanted();
  bool is_right(const Wanted& wanted) const;
  bool has_room_for_files() const;
  vmem_range any_range();
  std::vector<vmem_range> any_ranges();
  bool is_right(const vmem_range& range) const;
  bool holds(const Target& target) const;
  Target any_target();
  Stream any_stream();
  static std::string words(const Stream& stream);
  static Statuses stream_errors(const Stream& stream);
  Stream make_stream(int device, unsigned flags);
  static bool in_space(const Target& target);

  const ApiPlan& plan_;
  World& world_;
  EmulatedGpu& gpu_;
  Caller& call_;
  Random random_;
  const std::string file_;
  std::vector<Stream> streams_;
  std::vector<std::vector<vmem_range>> held_;  // by call
  std::vector<std::byte> host_;
};

}  // namespace vmem::test
