// What the test programs share: CUDA driver programs as any user would write them, that know nothing of vmem. They run on the emulated
// driver with libvmem_preload.so preloaded, once for each case; each case is one function.
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
// Where vmem's memory lies by default.
inline bool ours(CUdeviceptr address) { return address >= 0x7d0000000000 && address < 0x7e0000000000; }

// Registers `case_name` with what it does, at start-up.
struct Case {
  Case(const char* case_name, void (*body)());
};
#define CASE(name)                                          \
  void name##_body();                                       \
  const ::vmem::test::Case name##_case(#name, name##_body); \
  void name##_body()

// The first device's primary context, current, and the kernels below.
struct Machine {
  Machine();
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction function(const char* name) const;
};

// Kernels: add(unsigned* data, size_t count): adds 1 to each. gather(Lists by value): adds the words of its inputs to its output.
// fill(unsigned long* table, void* first, size_t stride, size_t count); follow(unsigned** table, size_t count): adds 1 to the first word
// that each entry leads to. copy_table(table* to, table* from, size_t count). walk(Node* first): adds 1 to the count of each node of a list.
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

// Keeps the GPU behind: what is queued on the stream waits until the gate is opened.
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

// A batch of one copy.
CUresult copy_as_batch(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream);

// Memory of 16 MiB each, filled with its number, and the stream that works on it.
constexpr std::size_t kBytes = 16 * kMiB, kWords = kBytes / sizeof(unsigned);
struct Buffers {
  CUstream stream = nullptr;
  std::vector<CUdeviceptr> at;
  explicit Buffers(std::size_t count);
  void work(CUfunction add);  // on all of them, so that what was used before leaves HBM
};

// Memory of the program's own, mapped by itself.
CUdeviceptr map_own(std::size_t bytes);

void launch(CUfunction function, CUstream stream, std::vector<void*> parameters);
std::vector<unsigned> read(CUdeviceptr from, std::size_t words, CUstream stream);

// What went to standard error while it ran, where it goes none the less. A program that ends in between takes it along.
std::string said_by(const std::function<void()>& what);

}  // namespace vmem::test
