#include "gpu/emu/cufile_state.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "gpu/cufile_table.hpp"
#include "gpu/emu/machine.hpp"

namespace vmem::emu {

CuFileState& cufile_state() {
  static auto* instance = new CuFileState;
  return *instance;
}

RegisteredFile::~RegisteredFile() {
  if (own >= 0) ::close(own);
}

bool CuFileState::is_open() const { return users() > 0; }

long CuFileState::users() const {
  const std::lock_guard lock(mutex_);
  return users_;
}

bool CuFileState::compat_allowed() const {
  const std::lock_guard lock(mutex_);
  return compat_allowed_;
}

bool CuFileState::stage_compat(bool allowed) {
  const std::lock_guard lock(mutex_);
  if (users_ > 0) return false;
  compat_allowed_ = allowed;
  return true;
}

int CuFileState::open() {
  const CuFileMode mode = machine().config().cufile;
  const std::lock_guard lock(mutex_);
  if (users_ == 0 && (mode == CuFileMode::none || (mode == CuFileMode::compat && !compat_allowed_))) {
    compat_allowed_ = true;
    return gpu::CU_FILE_DRIVER_NOT_INITIALIZED;
  }
  ++users_;
  return gpu::CU_FILE_SUCCESS;
}

bool CuFileState::close() {
  const std::lock_guard lock(mutex_);
  if (users_ == 0) return false;
  if (--users_ > 0) return true;
  compat_allowed_ = true;
  files_.clear();
  busy_ -= memory_.size();
  memory_.clear();
  return true;
}

bool CuFileState::add_file(int descriptor, std::shared_ptr<const RegisteredFile> file) {
  const std::lock_guard lock(mutex_);
  return files_.emplace(descriptor, std::move(file)).second;
}

void CuFileState::remove_file(int descriptor) {
  const std::lock_guard lock(mutex_);
  files_.erase(descriptor);
}

std::shared_ptr<const RegisteredFile> CuFileState::file(int descriptor) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(descriptor);
  return found == files_.end() ? nullptr : found->second;
}

bool CuFileState::add_memory(Range range) {
  const std::lock_guard lock(mutex_);
  if (!memory_.emplace(range.begin, range.bytes).second) return false;
  ++busy_;
  return true;
}

bool CuFileState::remove_memory(std::uint64_t begin) {
  const std::lock_guard lock(mutex_);
  if (memory_.erase(begin) == 0) return false;
  --busy_;
  return true;
}

CuFileState::Range CuFileState::memory(std::uint64_t begin) const {
  const std::lock_guard lock(mutex_);
  const auto found = memory_.find(begin);
  return found == memory_.end() ? Range{} : Range{found->first, found->second};
}

CuFileState::Use::Use(CuFileState& state, Range range) : state_(state) {
  const std::lock_guard lock(state_.mutex_);
  entry_ = state_.reads_.insert(state_.reads_.end(), range);
  ++state_.busy_;
}

CuFileState::Use::~Use() {
  const std::lock_guard lock(state_.mutex_);
  state_.reads_.erase(entry_);
  --state_.busy_;
}

void CuFileState::check_unused(Range range) {
  if (range.bytes == 0 || busy_.load(std::memory_order_acquire) == 0) return;
  const auto overlaps = [&range](const Range& other) {
    return other.begin < range.begin + range.bytes && range.begin < other.begin + other.bytes;
  };
  const std::lock_guard lock(mutex_);
  const bool registered =
      std::ranges::any_of(memory_, [&](const auto& each) { return overlaps({each.first, each.second}); });
  if (registered || std::ranges::any_of(reads_, overlaps)) ++misuses_;
}

}  // namespace vmem::emu
