#include "base/of_vmem.hpp"

namespace vmem {

bool& of_vmem() noexcept {
  static constinit thread_local bool value = false;
  return value;
}

}  // namespace vmem
