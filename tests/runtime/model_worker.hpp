// One thread of the model test: applies random operations to its own allocations and to shared
// read-only ones. The reference model tells what every byte must be.
#pragma once

#include <deque>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "runtime/emulated_gpu.hpp"
#include "runtime/model_plan.hpp"
#include "runtime/shadow.hpp"
#include "runtime/verdict.hpp"
#include "vmem/vmem.h"

namespace vmem::test {

struct StreamUse {
  CUstream stream = nullptr;
  int device = 0;
  bool operator==(const StreamUse&) const = default;
};

std::string words(const StreamUse& on);

struct ModelAllocation {
  ModelAllocation(void* at, std::size_t count, int on)
      : base(static_cast<std::byte*>(at)), bytes(count), device(on), shadow(count) {}
  bool small() const { return bytes <= (std::size_t{1} << 20); }
  std::byte* base;
  std::size_t bytes;
  int device;
  Shadow shadow;
  bool used = false;
  StreamUse last;  // its last use, if used
};

class ModelWorker {
 public:
  ModelWorker(const ModelPlan& plan, EmulatedGpu& gpu, Verdict& verdict, const std::deque<ModelAllocation>& shared,
              int number);
  // The thread's work; at the end it verifies and frees everything.
  void run();
  // The thread's last operations, one per line.
  std::string trace() const;

 private:
  struct Held {
    std::vector<vmem_range> ranges;
    std::vector<const ModelAllocation*> of;  // by range
  };
  struct Check {
    const std::byte* at;
    std::vector<std::byte> expected;
  };
  struct Store {
    std::byte* at;
    std::vector<std::byte> data;
  };

  void step();
  void allocate();
  void free_one();
  void launch_kernels();
  void fill();
  void copy();
  void copy_host();
  void read();
  void write();
  void advise();
  void query();
  void replace_stream();

  // Kernels.
  Held choose_ranges(const StreamUse& on);
  void add_own_range(Held& held, const StreamUse& on);
  void add_shared_range(Held& held, const StreamUse& on);
  bool acquire(const Held& held, const StreamUse& on);
  void launch_on(const Held& held, const StreamUse& on);
  void refuse_while_held(const Held& held);
  void add_checks(const ModelAllocation& allocation, Piece part, std::vector<Check>& checks);
  void add_stores(ModelAllocation& allocation, Piece part, std::vector<Store>& stores);

  void verify(const ModelAllocation& allocation, Piece piece);
  void verify_and_free(std::size_t index);
  void use(ModelAllocation& allocation, const StreamUse& on);
  ModelAllocation* pick_usable(const StreamUse& on);
  ModelAllocation* own(const vmem_range& range);
  StreamUse pick_stream();
  bool reaches(const StreamUse& on, int device) const { return plan_.peers || on.device == device; }
  Piece pick_piece(std::size_t bytes, std::size_t most);
  std::vector<std::byte> noise(std::size_t bytes);
  // True for VMEM_OK; a status not in `allowed` fails the test.
  bool ok(vmem_status status, std::initializer_list<vmem_status> allowed = {});
  // The same for calls that make pages usable.
  bool served(vmem_status status);
  void note(std::string what);

  const ModelPlan& plan_;
  EmulatedGpu& gpu_;
  Verdict& verdict_;
  const std::deque<ModelAllocation>& shared_;
  const int number_;
  Random random_;
  std::vector<StreamUse> streams_;
  std::vector<ModelAllocation> own_;
  std::size_t own_bytes_ = 0;
  std::deque<std::string> trace_;
};

}  // namespace vmem::test
