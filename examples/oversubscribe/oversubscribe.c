/*
 * Twice the HBM budget in one program: two buffers, each as large as the budget, are filled and
 * copied on the GPU, chunk by chunk, and verified on the host. vmem moves pages between HBM and
 * host memory behind unchanged addresses.
 *
 * The budget is VMEM_HBM, or 256 MiB so that the program is over in a moment.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <vmem/vmem.h>

static void check(vmem_status status, const char* call) {
  if (status == VMEM_OK) return;
  fprintf(stderr, "%s: %s: %s\n", call, vmem_status_string(status), vmem_last_error());
  exit(1);
}
#define CHECK(call) check((call), #call)

/* The fill byte of chunk i. */
static int pattern(size_t chunk) { return (int)((chunk * 37 + 11) % 256); }

int main(void) {
  const vmem_option options[] = {{"hbm", "256MiB"}};
  CHECK(vmem_init(options, getenv("VMEM_HBM") ? 0 : 1));

  vmem_statistics stats = {.struct_bytes = sizeof(stats)};
  CHECK(vmem_stats(&stats));
  const size_t bytes = stats.hbm_budget_bytes / (size_t)stats.device_count;
  const size_t chunks = 16;
  const size_t chunk_bytes = bytes / chunks;
  const vmem_stream stream = 0; /* the default stream */

  char *source, *copy;
  CHECK(vmem_malloc((void**)&source, bytes, 0, stream));
  CHECK(vmem_malloc((void**)&copy, bytes, 0, stream));
  printf("%zu MiB of memory on %zu MiB of HBM%s\n", 2 * bytes >> 20, bytes >> 20,
         stats.emulated ? " (emulated driver)" : "");

  /* Memsets and copies by vmem page in the bytes that they touch; each may be larger than HBM. */
  for (size_t i = 0; i < chunks; i++) CHECK(vmem_memset(source + i * chunk_bytes, pattern(i), chunk_bytes, stream));
  CHECK(vmem_memcpy(copy, source, chunks * chunk_bytes, stream));

  /* A program's own kernels and library calls touch ranges between acquire and release. Here the
   * work is a memset that overwrites all of the first chunk, so its old contents need not be
   * fetched. */
  const vmem_range first = {.ptr = copy, .bytes = chunk_bytes, .access = VMEM_WRITE | VMEM_DISCARD};
  CHECK(vmem_acquire(&first, 1, stream));
  CHECK(vmem_memset(copy, 255, chunk_bytes, stream)); /* stands for kernel<<<..., stream>>>(copy) */
  CHECK(vmem_release(&first, 1, stream));

  /* Reads back to the host, from whichever tier holds the pages. */
  unsigned char* host = malloc(chunk_bytes);
  if (host == NULL) return 1;
  size_t wrong = 0;
  for (size_t i = 0; i < chunks; i++) {
    const int expected = i == 0 ? 255 : pattern(i);
    CHECK(vmem_read(host, copy + i * chunk_bytes, chunk_bytes));
    for (size_t j = 0; j < chunk_bytes; j++) wrong += host[j] != expected;
  }
  free(host);

  CHECK(vmem_stats(&stats));
  printf("moved in %llu MiB, out %llu MiB; %zu wrong bytes\n", (unsigned long long)stats.migrated_in_bytes >> 20,
         (unsigned long long)stats.migrated_out_bytes >> 20, wrong);
  CHECK(vmem_free(source, stream));
  CHECK(vmem_free(copy, stream));
  CHECK(vmem_shutdown());
  return wrong == 0 ? 0 : 1;
}
