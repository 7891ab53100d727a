/*
 * A table that one program of a cluster publishes, and others scan where it lies.
 *
 *     table publish NAME   fills a table, publishes it, and keeps it until its input ends
 *     table scan NAME      waits for the name, and adds up the table's rows
 *
 * The cluster is VMEM_CLUSTER. The table is larger than the HBM budget, which is VMEM_HBM, or
 * 32 MiB: a scan brings in what it reads, from whichever node has it.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vmem/cluster.h>

enum { ROWS_PER_CHUNK = 1 << 17, CHUNKS = 64 }; /* of 8 bytes: 1 MiB a chunk, 64 MiB in all */

static void check(vmem_status status, const char* call) {
  if (status == VMEM_OK) return;
  fprintf(stderr, "%s: %s: %s\n", call, vmem_status_string(status), vmem_last_error());
  exit(1);
}
#define CHECK(call) check((call), #call)

static uint64_t row(uint64_t number) { return number * 2654435761u % 1000; }

static uint64_t chunk[ROWS_PER_CHUNK];

static void publish(const char* name) {
  char* table;
  CHECK(vmem_malloc((void**)&table, CHUNKS * sizeof(chunk), 0, NULL));
  for (uint64_t i = 0; i < CHUNKS; i++) {
    for (uint64_t j = 0; j < ROWS_PER_CHUNK; j++) chunk[j] = row(i * ROWS_PER_CHUNK + j);
    CHECK(vmem_write(table + i * sizeof(chunk), chunk, sizeof(chunk)));
  }
  CHECK(vmem_publish(table, name, NULL)); /* read-only from now on, here too */
  printf("published '%s' at %p\n", name, (void*)table);
  fflush(stdout);
  while (getchar() != EOF) { /* others fetch pages from here */
  }
  /* Nobody else may have some of its pages by now. */
  const vmem_status closed = vmem_close(table, NULL, 1000000);
  if (closed != VMEM_ERROR_LOST) CHECK(closed);
}

static void scan(const char* name) {
  void* opened;
  uint64_t bytes;
  CHECK(vmem_open(&opened, &bytes, name, 0, 30000000));
  const char* const table = opened;
  uint64_t sum = 0;
  for (uint64_t i = 0; i < bytes / sizeof(chunk); i++) {
    /* Ahead of the scan; a kernel would read the chunk between vmem_acquire and vmem_release. */
    if (i + 4 < bytes / sizeof(chunk)) CHECK(vmem_prefetch(table + (i + 4) * sizeof(chunk), sizeof(chunk)));
    CHECK(vmem_read(chunk, table + i * sizeof(chunk), sizeof(chunk)));
    for (uint64_t j = 0; j < ROWS_PER_CHUNK; j++) sum += chunk[j];
  }
  printf("scanned %" PRIu64 " MiB of '%s' at %p: the sum is %" PRIu64 "\n", bytes >> 20, name, opened, sum);
  CHECK(vmem_close(opened, NULL, 0));
}

int main(int argc, char** argv) {
  if (argc != 3 || (strcmp(argv[1], "publish") != 0 && strcmp(argv[1], "scan") != 0)) {
    fprintf(stderr, "usage: %s publish|scan NAME\n", argv[0]);
    return 2;
  }
  const vmem_option options[] = {{"hbm", "32MiB"}};
  CHECK(vmem_init(options, getenv("VMEM_HBM") ? 0 : 1));
  if (strcmp(argv[1], "publish") == 0) {
    publish(argv[2]);
  } else {
    scan(argv[2]);
  }
  vmem_shutdown();
  return 0;
}
