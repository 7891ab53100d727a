#include "base/run_board.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace vmem {
namespace {

std::unexpected<Error> failed(const char* what) {
  const int error = errno;
  return fail(VMEM_ERROR_INTERNAL, fmt::format("{}: {}", what, std::strerror(error)), error);
}

void add(RunFigures& total, const RunFigures& more) {
  total.launches += more.launches;
  total.launches_that_waited += more.launches_that_waited;
  total.wait_us += more.wait_us;
  total.in_place_launches += more.in_place_launches;
  total.hbm_budget_bytes += more.hbm_budget_bytes;
  total.host_budget_bytes += more.host_budget_bytes;
  total.into_hbm_bytes += more.into_hbm_bytes;
  total.out_of_hbm_bytes += more.out_of_hbm_bytes;
  total.to_disk_and_nodes_bytes += more.to_disk_and_nodes_bytes;
  total.from_disk_and_nodes_bytes += more.from_disk_and_nodes_bytes;
}

}  // namespace

Result<RunBoard> RunBoard::create() {
  FileDescriptor file(::memfd_create("vmem-run", MFD_CLOEXEC));
  if (!file) return failed("memfd_create");
  if (::ftruncate(file.get(), sizeof(Shared)) != 0) return failed("ftruncate");
  return map(std::move(file));
}

std::optional<RunBoard> RunBoard::of_environment() {
  const char* const path = std::getenv(kRunVariable);
  if (path == nullptr) return std::nullopt;
  FileDescriptor file(::open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK));
  struct stat found{};
  // The number may belong to another process by now.
  if (!file || ::fstat(file.get(), &found) != 0 || found.st_size != off_t{sizeof(Shared)}) return std::nullopt;
  auto board = map(std::move(file));
  if (!board) return std::nullopt;
  board->file_.reset();  // the program gets no descriptor of ours
  return *std::move(board);
}

Result<RunBoard> RunBoard::map(FileDescriptor file) {
  void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return failed("mmap");
  // The zeros of a new file are a valid board.
  return RunBoard(std::move(file), static_cast<Shared*>(memory));
}

RunBoard::RunBoard(RunBoard&& other) noexcept
    : file_(std::move(other.file_)), shared_(std::exchange(other.shared_, nullptr)) {}

RunBoard::~RunBoard() {
  if (shared_ != nullptr) ::munmap(shared_, sizeof(Shared));
}

std::string RunBoard::path() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), file_.get()); }

RunBoard::Entry* RunBoard::claim() {
  const std::uint32_t index = shared_->claimed.fetch_add(1);
  return index < kEntries ? &shared_->entries[index] : nullptr;
}

RunBoard::Summary RunBoard::summary() const {
  Summary summary;
  const std::uint32_t claimed = shared_->claimed.load();
  for (std::uint32_t i = 0; i < std::min<std::uint32_t>(claimed, kEntries); ++i) {
    const Entry& entry = shared_->entries[i];
    const State state = entry.state.load(std::memory_order_acquire);
    summary.refused |= state == State::refused;
    if (state == State::started || state == State::unused) ++summary.without_figures;
    if (state != State::refused) ++summary.processes;
    if (state == State::ended) add(summary.total, entry.figures);
  }
  const std::uint32_t beyond = claimed - std::min<std::uint32_t>(claimed, kEntries);
  summary.processes += beyond;
  summary.without_figures += beyond;
  return summary;
}

}  // namespace vmem
