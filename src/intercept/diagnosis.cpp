#include "intercept/diagnosis.hpp"

#include <cxxabi.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "intercept/hook.hpp"
#include "intercept/references.hpp"

namespace vmem::intercept {
namespace {

constexpr std::size_t kAddressesShown = 12;

struct Launch {
  std::uint64_t number = 0;  // unique in the process
  const FunctionFacts* function = nullptr;
  CUstream stream = nullptr;
  bool looked_at = false;
  std::size_t addresses = 0;
  std::array<std::uintptr_t, kAddressesShown> first{};
};

// Written by its thread without a lock; read once, after the GPU has failed.
struct Recent {
  std::array<Launch, 8> launches;
  std::size_t next = 0;
};

std::mutex recent_mutex;
std::vector<Recent*>& all_recent() {
  static auto* all = new std::vector<Recent*>;
  return *all;
}
std::atomic<std::uint64_t> launch_number{0};

// Never freed: the launches of a thread that ended may matter.
Recent* new_recent() {
  auto* made = new Recent;
  const std::lock_guard lock(recent_mutex);
  all_recent().push_back(made);
  return made;
}

std::string name_of(const FunctionFacts* function) {
  if (function == nullptr) return "a graph";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> demangled(
      abi::__cxa_demangle(function->name.c_str(), nullptr, nullptr, &status), std::free);
  return demangled ? demangled.get() : function->name;
}

// A record begins "priority,number,microseconds since the start,flags;".
bool is_recent(const std::string& record) {
  constexpr std::uint64_t kRecentUs = 10'000'000;
  unsigned long priority = 0, number = 0, at_us = 0;
  if (std::sscanf(record.c_str(), "%lu,%lu,%lu", &priority, &number, &at_us) != 3) return false;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::uint64_t(now.tv_sec) * 1'000'000 + std::uint64_t(now.tv_nsec) / 1000 < at_us + kRecentUs;
}

// The driver may write the address of a memory fault to the kernel's log (Xid 31):
// "MMU Fault: ... faulted @ 0x7d00_12345000".
std::optional<std::uint64_t> address_in_kernel_log() {
  const int log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (log < 0) return std::nullopt;
  std::optional<std::uint64_t> found;
  std::array<char, 8192> record;
  for (;;) {
    const ssize_t length = read(log, record.data(), record.size() - 1);
    if (length < 0 && errno == EPIPE) continue;  // overwritten during the read: try the next record
    if (length <= 0) break;
    const std::string text(record.data(), std::size_t(length));
    const std::size_t at = text.find("faulted @ 0x");
    const bool ours = text.find(fmt::format("pid={},", getpid())) != std::string::npos;
    if (text.find("Xid") == std::string::npos || at == std::string::npos || !ours || !is_recent(text)) continue;
    std::string digits;
    for (std::size_t i = at + 12;
         i < text.size() && (std::isxdigit(static_cast<unsigned char>(text[i])) || text[i] == '_'); ++i) {
      if (text[i] != '_') digits += text[i];
    }
    found = std::strtoull(digits.c_str(), nullptr, 16);
  }
  close(log);
  return found;
}

std::vector<Launch> last_launches() {
  std::vector<Launch> launches;
  const std::lock_guard lock(recent_mutex);
  for (const Recent* recent : all_recent())
    launches.insert(launches.end(), recent->launches.begin(), recent->launches.end());
  std::erase_if(launches, [](const Launch& launch) { return launch.number == 0; });
  std::ranges::sort(launches, std::greater{}, &Launch::number);
  launches.resize(std::min<std::size_t>(launches.size(), 8));
  return launches;
}

}  // namespace

void note_launch(const FunctionFacts* function, CUstream stream,
                 std::optional<std::span<const std::uintptr_t>> addresses) {
  thread_local Recent* const recent = new_recent();
  Launch& launch = recent->launches[recent->next++ % recent->launches.size()];
  launch.number = launch_number.fetch_add(1, std::memory_order_relaxed) + 1;
  launch.function = function;
  launch.stream = stream;
  launch.looked_at = addresses.has_value();
  if (!addresses) return;
  launch.addresses = addresses->size();
  std::copy_n(addresses->begin(), std::min(addresses->size(), kAddressesShown), launch.first.begin());
}

void diagnose(CUresult result) {
  static std::atomic<bool> said{false};
  runtime::Runtime* runtime = running();
  if (runtime == nullptr || said.exchange(true)) return;
  const gpu::Driver& driver = runtime->driver();
  std::string text = fmt::format("vmem: {}\n", driver.check(result, "a kernel").error().message);
  const bool of_memory = result == CUDA_ERROR_ILLEGAL_ADDRESS || result == CUDA_ERROR_INVALID_ADDRESS_SPACE ||
                         result == CUDA_ERROR_LAUNCH_FAILED;
  const auto address = of_memory ? address_in_kernel_log() : std::nullopt;
  if (!of_memory) {
    text += "  where memory lies is not at issue: the program itself is\n";
  } else if (address && ours(runtime, std::uintptr_t{*address})) {
    text += fmt::format("  address {:#x}: {}\n", *address, runtime->requests().describe(*address));
  } else if (address) {
    text += fmt::format("  address {:#x} is none of vmem's: the program reached outside its memory\n", *address);
  } else {
    text += "  the address is not known here; it may be in the kernel's log (dmesg, Xid 31)\n";
  }
  const auto launches = last_launches();
  text += launches.empty() ? "  no launch of the program was seen\n" : "  the last launches, latest first:\n";
  for (const Launch& launch : launches) {
    text += fmt::format("  {}: {} on stream {}, ", launch.number, name_of(launch.function),
                        static_cast<void*>(launch.stream));
    if (!launch.looked_at) {
      text += "when everything was in HBM\n";
      continue;
    }
    text += "naming";
    for (std::size_t i = 0; i < std::min(launch.addresses, kAddressesShown); ++i)
      text += fmt::format(" {:#x}", launch.first[i]);
    text +=
        launch.addresses > kAddressesShown ? fmt::format(" and {} more\n", launch.addresses - kAddressesShown) : "\n";
  }
  if (of_memory) text += "  `vmem run --strict` stops at the first launch that reaches what it does not name\n";
  std::fputs(text.c_str(), stderr);
}

}  // namespace vmem::intercept
