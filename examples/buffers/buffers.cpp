// vmem.hpp in use: more buffers than HBM, freed by scope; holds around GPU work; advice and
// statistics; a memory resource for libraries that take one; errors.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

#include <vmem/memory_resource.hpp>
#include <vmem/vmem.hpp>

namespace {

// Of 4 bytes: 128 MiB a buffer, half of the budget below.
constexpr std::size_t kElements = 32u << 20;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

// Six buffers on HBM for two; each keeps its own contents while the others are used.
void oversubscribe(vmem::stream_view stream) {
  std::vector<vmem::buffer<std::uint32_t>> buffers;
  std::vector<std::uint32_t> host(kElements);
  for (std::uint32_t i = 0; i < 6; ++i) {
    buffers.emplace_back(kElements, 0, stream);
    std::iota(host.begin(), host.end(), i << 26);
    buffers.back().store(host);  // straight into the host tier: no HBM needed
  }
  vmem::prefetch(buffers[0]);
  vmem::buffer<std::uint32_t> sum(kElements, 0, stream);
  for (const auto& buffer : buffers) {
    // Any GPU work may stand between the braces: kernels, cuBLAS, copies. This one is a copy.
    vmem::hold held(stream, vmem::read(buffer), vmem::discard(sum));
    vmem::memcpy(sum.data(), buffer.data(), sum.bytes(), stream);
  }
  sum.load(host);
  require(host.front() == 5u << 26 && host.back() == (5u << 26) + kElements - 1, "the last buffer's contents");
  buffers[2].load(std::span(host).first(1000), 5000);
  require(host[0] == (2u << 26) + 5000, "contents of a buffer that was moved out");

  const vmem_statistics stats = vmem::stats();
  std::printf("%.1f GiB allocated on %.2f GiB of HBM%s: %llu evictions\n", double(stats.allocated_bytes) / (1u << 30),
              double(stats.hbm_budget_bytes) / (1u << 30), stats.emulated ? " (emulated driver)" : "",
              static_cast<unsigned long long>(stats.evictions));
}

// Uses a resource as a pool or a container does, in both argument orders that libraries use.
void allocate_through_resource(vmem::stream_view stream) {
  vmem::memory_resource resource;
  void* first = resource.allocate(stream, 1u << 20);
  void* second = resource.allocate_async(1u << 20, stream);
  vmem::memset(first, 7, 1u << 20, stream);
  vmem::memcpy(second, first, 1u << 20, stream);
  unsigned char last = 0;
  vmem::read(&last, static_cast<char*>(second) + (1u << 20) - 1, 1);
  require(last == 7, "a copy between two allocations of a resource");
  require(vmem::query(second).bytes == 1u << 20, "the size of an allocation");
  resource.deallocate_async(second, 1u << 20, stream);
  resource.deallocate(stream, first, 1u << 20);
}

void report_errors() {
  try {
    vmem::buffer<float>(std::size_t{1} << 60);
    require(false, "an allocation of 4 EiB must fail");
  } catch (const vmem::error& e) {
    std::printf("as expected: %s\n", e.what());
  }
}

}  // namespace

int main() {
  try {
    vmem::session session({{"hbm", "256MiB"}});
    const vmem::stream_view stream;  // the default stream; a cudaStream_t converts
    oversubscribe(stream);
    allocate_through_resource(stream);
    report_errors();
  } catch (const vmem::error& e) {
    std::fprintf(stderr, "%s: %s\n", vmem_status_string(e.status()), e.what());
    return 1;
  }
  std::puts("ok");
}
