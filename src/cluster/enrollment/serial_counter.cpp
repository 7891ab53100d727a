#include "cluster/enrollment/serial_counter.hpp"

#include <fmt/format.h>

#include "base/printable.hpp"
#include "cluster/enrollment/json_fields.hpp"
#include "cluster/enrollment/registry_calls.hpp"

namespace vmem::cluster {
namespace {

constexpr std::uint64_t kMostSerial = std::uint64_t{1} << 62;

}  // namespace

Result<SerialCounter> read_counter(const Read& read) {
  const Record* const record = find_record(read, kSerialKey);
  if (record == nullptr) return SerialCounter{};
  SerialCounter counter{.last = 0, .modified = record->modified};
  if (parse_decimal(record->value, counter.last) && counter.last < kMostSerial) return counter;
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("the registry's record '{}' is '{}', no number below 2^62: set it to the largest number of "
                          "a node or region in the registry, or a larger one",
                          kSerialKey, printable(record->value)));
}

void count_up(const SerialCounter& counter, std::uint64_t count, Commit& commit) {
  commit.conditions.push_back({.key = std::string(kSerialKey), .modified = counter.modified});
  commit.edits.push_back({.key = std::string(kSerialKey), .value = fmt::to_string(counter.last + count), .lease = {}});
}

Edit first_counter(std::uint64_t incarnation) {
  constexpr std::uint64_t kSerialsPerMicrosecond = 256;
  return {.key = std::string(kSerialKey), .value = fmt::to_string(incarnation * kSerialsPerMicrosecond), .lease = {}};
}

}  // namespace vmem::cluster
