// The calling thread's pointer tables.
#pragma once

#include <cstdint>

#include "runtime/launch/tables/pointer_tables.hpp"

namespace vmem::runtime {

// Created at the thread's first call; null once its thread-local variables were destroyed, while
// destructors of others may still free memory.
PointerTables* thread_tables();
// No table leads to freed memory. Does not create tables for a thread that has none.
void forget_tables(std::uintptr_t address, std::uint64_t bytes);

}  // namespace vmem::runtime
