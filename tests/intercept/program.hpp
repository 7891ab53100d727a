// Shared by the test programs: plain CUDA driver programs that do not know vmem. Each case is one
// function, run in a process of its own on the emulated driver with libvmem_preload.so preloaded.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#define REQUIRE(condition)                                                           \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (false)
#define CALL(call)                                                                   \
  do {                                                                               \
    if (const CUresult call_result = (call); call_result != CUDA_SUCCESS) {          \
      const char* call_name = "?";                                                   \
      cuGetErrorName(call_result, &call_name);                                       \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, call_name); \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (false)

namespace vmem::test {

constexpr std::size_t kMiB = std::size_t{1} << 20;
// vmem's default address range.
inline bool ours(CUdeviceptr address) { return address >= 0x7d0000000000 && address < 0x7e0000000000; }

// Registers `body` as `case_name` during static initialization.
struct Case {
  Case(const char* case_name, void (*body)());
};
#define CASE(name)                                          \
  void name##_body();                                       \
  const ::vmem::test::Case name##_case(#name, name##_body); \
  void name##_body()

// Makes the first device's primary context current and loads the kernels below.
struct Machine {
  Machine();
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction function(const char* name) const;
};

// Kernels:
//   add(unsigned* data, size_t count): adds 1 to each word.
//   gather(Lists by value): adds the words of its inputs to its output.
//   fill(unsigned long* table, void* first, size_t stride, size_t count).
//   follow(unsigned** table, size_t count): adds 1 to the first word that each entry points to.
//   copy_table(table* to, table* from, size_t count).
//   walk(Node* first): adds 1 to the count of each node of a list.
struct Lists {
  unsigned count;
  unsigned words;
  unsigned* inputs[6];
  unsigned* output;
};

struct Node {
  CUdeviceptr next;
  std::uint64_t count;
};

struct Stream {
  CUstream handle = nullptr;
  explicit Stream(unsigned flags = CU_STREAM_NON_BLOCKING) { CALL(cuStreamCreate(&handle, flags)); }
  ~Stream() { CALL(cuStreamDestroy(handle)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
};

// Stalls a stream: work queued after close() waits for open().
class Gate {
 public:
  Gate();
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void close(CUstream stream);
  void open();

 private:
  unsigned* word_ = nullptr;
};

// One copy, submitted as a batch of two halves.
CUresult copy_as_batch(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream);

// Allocations of 16 MiB, each filled with its index, and the stream that works on them.
constexpr std::size_t kBytes = 16 * kMiB, kWords = kBytes / sizeof(unsigned);
struct Buffers {
  CUstream stream = nullptr;
  std::vector<CUdeviceptr> at;
  explicit Buffers(std::size_t count);
  void work(CUfunction add);  // on all of them, which evicts what was used before
};

// Device memory that the program maps itself, with cuMemMap.
CUdeviceptr map_own(std::size_t bytes);

void launch(CUfunction function, CUstream stream, std::vector<void*> parameters);
std::vector<unsigned> read(CUdeviceptr from, std::size_t words, CUstream stream);

// Returns the standard error output of `what`, and still prints it. If the program ends inside
// `what`, that output is lost.
std::string said_by(const std::function<void()>& what);

}  // namespace vmem::test
