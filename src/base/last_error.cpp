#include "base/last_error.hpp"

#include <string>

namespace vmem::last_error {
namespace {

thread_local std::string last_message;

}  // namespace

vmem_status record(Error error) {
  last_message = std::move(error.message);
  return error.status;
}

const char* message() noexcept { return last_message.c_str(); }

}  // namespace vmem::last_error
