// Cost of an acquire and a release of resident pages, on the emulated driver. For counting
// instructions, which do not depend on the machine (docs/decisions/0100); `vmem bench hit` measures
// the time.
//   VMEM_EMU=hbm=256MiB,host=512MiB
//     valgrind --tool=callgrind build/release/bin/hit_bench [PAGES]
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "vmem/vmem.h"

namespace {

constexpr int kPairs = 20'000;
constexpr std::size_t kPage = std::size_t{2} << 20;

void check(vmem_status status, const char* call) {
  if (status == VMEM_OK) return;
  std::fprintf(stderr, "%s: %s\n", call, vmem_last_error());
  std::exit(1);
}

}  // namespace

int main(int count, char** arguments) {
  const std::size_t pages = count > 1 ? std::strtoul(arguments[1], nullptr, 10) : 1;
  const vmem_option options[] = {{"driver", "emulated"}, {"hbm", "128MiB"}, {"host", "128MiB"}, {"page", "2MiB"}};
  check(vmem_init(options, std::size(options)), "vmem_init");
  void* memory = nullptr;
  check(vmem_malloc(&memory, pages * kPage, 0, nullptr), "vmem_malloc");
  const vmem_range range{memory, pages * kPage, VMEM_READ_WRITE, 0};
  for (int i = 0; i < kPairs; ++i) {
    check(vmem_acquire(&range, 1, nullptr), "vmem_acquire");
    check(vmem_release(&range, 1, nullptr), "vmem_release");
  }
  check(vmem_free(memory, nullptr), "vmem_free");
  check(vmem_shutdown(), "vmem_shutdown");
  std::printf("%d pairs of acquire and release of %zu pages\n", kPairs, pages);
  return 0;
}
