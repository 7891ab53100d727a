#include "intercept/program.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "gpu/emu/emu.h"

namespace vmem::test {
namespace {

std::map<std::string, void (*)()>& cases() {
  static std::map<std::string, void (*)()> all;
  return all;
}

template <class T>
T parameter(const vmem_emu_launch* launch, unsigned index) {
  return *static_cast<T*>(launch->params[index]);
}

void add(const vmem_emu_launch* launch) {
  auto* data = parameter<unsigned*>(launch, 0);
  const auto count = parameter<std::size_t>(launch, 1);
  for (std::size_t i = 0; i < count; ++i) ++data[i];
}

void gather(const vmem_emu_launch* launch) {
  const auto lists = parameter<Lists>(launch, 0);
  for (unsigned word = 0; word < lists.words; ++word) {
    for (unsigned i = 0; i < lists.count; ++i) lists.output[word] += lists.inputs[i][word];
  }
}

void fill(const vmem_emu_launch* launch) {
  auto* table = parameter<std::uint64_t*>(launch, 0);
  const auto first = parameter<std::uint64_t>(launch, 1);
  const auto stride = parameter<std::size_t>(launch, 2);
  const auto count = parameter<std::size_t>(launch, 3);
  for (std::size_t i = 0; i < count; ++i) table[i] = first + i * stride;
}

void follow(const vmem_emu_launch* launch) {
  auto** table = parameter<unsigned**>(launch, 0);
  const auto count = parameter<std::size_t>(launch, 1);
  for (std::size_t i = 0; i < count; ++i) ++*table[i];
}

void copy_table(const vmem_emu_launch* launch) {
  auto* to = parameter<std::uint64_t*>(launch, 0);
  auto* from = parameter<std::uint64_t*>(launch, 1);
  const auto count = parameter<std::size_t>(launch, 2);
  for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
}

void walk(const vmem_emu_launch* launch) {
  for (auto* at = parameter<std::uint64_t*>(launch, 0); at != nullptr; at = reinterpret_cast<std::uint64_t*>(at[0]))
    ++at[1];
}

void add_kernel(const char* name, vmem_emu_kernel kernel, const std::vector<std::size_t>& bytes) {
  REQUIRE(vmem_emu_register_kernel(name, kernel, bytes.data(), unsigned(bytes.size())) == 0);
}

}  // namespace

Case::Case(const char* case_name, void (*body)()) { cases()[case_name] = body; }

Machine::Machine() {
  add_kernel("add", add, {8, 8});
  add_kernel("gather", gather, {sizeof(Lists)});
  add_kernel("fill", fill, {8, 8, 8, 8});
  add_kernel("follow", follow, {8, 8});
  add_kernel("copy_table", copy_table, {8, 8, 8});
  add_kernel("walk", walk, {8});
  CALL(cuInit(0));
  CALL(cuDeviceGet(&device, 0));
  CALL(cuDevicePrimaryCtxRetain(&context, device));
  CALL(cuCtxSetCurrent(context));
  const char image[64] = "VMEMEMU";
  CALL(cuModuleLoadData(&module, image));
}

CUfunction Machine::function(const char* name) const {
  CUfunction found = nullptr;
  CALL(cuModuleGetFunction(&found, module, name));
  return found;
}

Gate::Gate() { CALL(cuMemHostAlloc(reinterpret_cast<void**>(&word_), sizeof *word_, CU_MEMHOSTALLOC_PORTABLE)); }
Gate::~Gate() { CALL(cuMemFreeHost(word_)); }
void Gate::close(CUstream stream) {
  std::atomic_ref(*word_).store(0);
  CALL(cuStreamWaitValue32(stream, reinterpret_cast<CUdeviceptr>(word_), 1, CU_STREAM_WAIT_VALUE_GEQ));
}
void Gate::open() { std::atomic_ref(*word_).store(1); }

CUresult copy_as_batch(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  const std::size_t half = bytes / 2;
  std::array<CUdeviceptr, 2> targets{to, to + half}, sources{from, from + half};
  std::array<std::size_t, 2> sizes{half, bytes - half};
  std::size_t first = 0;
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  return cuMemcpyBatchAsync(targets.data(), sources.data(), sizes.data(), 2, &attributes, &first, 1, stream);
}

Buffers::Buffers(std::size_t count) : at(count) {
  CALL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (std::size_t i = 0; i < count; ++i) {
    CALL(cuMemAllocAsync(&at[i], kBytes, stream));
    CALL(cuMemsetD32Async(at[i], unsigned(i), kWords, stream));
  }
}

void Buffers::work(CUfunction add) {
  for (CUdeviceptr& each : at) {
    std::size_t words = kWords;
    launch(add, stream, {&each, &words});
  }
}

CUdeviceptr map_own(std::size_t bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr own = 0;
  CALL(cuMemCreate(&handle, bytes, &properties, 0));
  CALL(cuMemAddressReserve(&own, bytes, 0, 0, 0));
  CALL(cuMemMap(own, bytes, 0, handle, 0));
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CALL(cuMemSetAccess(own, bytes, &access, 1));
  return own;
}

void launch(CUfunction function, CUstream stream, std::vector<void*> parameters) {
  CALL(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters.data(), nullptr));
}

std::vector<unsigned> read(CUdeviceptr from, std::size_t words, CUstream stream) {
  std::vector<unsigned> data(words);
  CALL(cuMemcpyDtoHAsync(data.data(), from, words * sizeof(unsigned), stream));
  CALL(cuStreamSynchronize(stream));
  return data;
}

std::string said_by(const std::function<void()>& what) {
  const int before = dup(STDERR_FILENO), kept = memfd_create("said", MFD_CLOEXEC);
  REQUIRE(before >= 0 && kept >= 0);
  REQUIRE(dup2(kept, STDERR_FILENO) >= 0);
  what();
  REQUIRE(dup2(before, STDERR_FILENO) >= 0);
  std::string said(std::size_t(lseek(kept, 0, SEEK_END)), '\0');
  REQUIRE(pread(kept, said.data(), said.size(), 0) == ssize_t(said.size()));
  close(kept);
  close(before);
  std::fputs(said.c_str(), stderr);
  return said;
}

}  // namespace vmem::test

int main(int argc, char** argv) {
  const auto found = argc == 2 ? vmem::test::cases().find(argv[1]) : vmem::test::cases().end();
  if (found != vmem::test::cases().end()) return found->second(), 0;
  for (const auto& [name, body] : vmem::test::cases()) std::puts(name.c_str());
  return 2;
}
