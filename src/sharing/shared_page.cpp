#include "sharing/shared_page.hpp"

#include <fmt/format.h>

namespace vmem::sharing {

std::string words(const SharedPage& page) {
  return fmt::format("page {} of the published region {}", page.page, static_cast<std::uint64_t>(page.serial));
}

}  // namespace vmem::sharing
