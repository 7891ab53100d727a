// Entry points that programs call and vmem itself does not (those are in gpu/driver_table.hpp): X(name) for each, by base name.
#pragma once

#define VMEM_EMU_LAUNCH_FUNCTIONS(X)

#define VMEM_EMU_GRAPH_FUNCTIONS(X)

#define VMEM_EMU_MEMORY_FUNCTIONS(X)

#define VMEM_EMU_PROGRAM_FUNCTIONS(X) \
  VMEM_EMU_LAUNCH_FUNCTIONS(X)        \
  VMEM_EMU_GRAPH_FUNCTIONS(X)         \
  VMEM_EMU_MEMORY_FUNCTIONS(X)
