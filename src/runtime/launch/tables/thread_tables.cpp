#include "runtime/launch/tables/thread_tables.hpp"

namespace vmem::runtime {
namespace {

struct CurrentTables {
  PointerTables* tables;
  bool ended;
};
constinit thread_local CurrentTables current_tables{nullptr, false};
struct ThreadTables {
  PointerTables tables;
  ThreadTables() { current_tables.tables = &tables; }
  ~ThreadTables() { current_tables = {nullptr, true}; }
};

}  // namespace

PointerTables* thread_tables() {
  const CurrentTables& current = current_tables;
  if (current.tables != nullptr || current.ended) [[likely]]
    return current.tables;
  thread_local ThreadTables mine;
  return &mine.tables;
}

void forget_tables(std::uintptr_t address, std::uint64_t bytes) {
  if (PointerTables* tables = current_tables.tables) tables->forget_tables(address, bytes);
}

}  // namespace vmem::runtime
