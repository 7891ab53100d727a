#include "gpu/emu/cufile_state.hpp"

#include <unistd.h>

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

}  // namespace vmem::emu
