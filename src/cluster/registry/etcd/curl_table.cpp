#include "cluster/registry/etcd/curl_table.hpp"

#include <fmt/format.h>

#include "base/library.hpp"

namespace vmem::cluster {
namespace {

constexpr const char* kAdvice = "a registry needs libcurl 7.66 or newer: install it (Debian, Ubuntu: libcurl4)";

}  // namespace

Result<CurlRef> load_curl() {
  VMEM_ASSIGN(const Library library, open_library("libcurl.so.4", kAdvice));
  auto curl = std::make_shared<CurlTable>();
#define VMEM_RESOLVE(name)                                                     \
  {                                                                            \
    VMEM_ASSIGN(void* const function, find_function(library, #name, kAdvice)); \
    curl->name = reinterpret_cast<decltype(curl->name)>(function);             \
  }
  VMEM_CURL_FUNCTIONS(VMEM_RESOLVE)
#undef VMEM_RESOLVE
  if (const CURLcode code = curl->curl_global_init(CURL_GLOBAL_DEFAULT); code != CURLE_OK)
    return fail(VMEM_ERROR_UNSUPPORTED, fmt::format("curl_global_init failed: {}", curl->curl_easy_strerror(code)));
  return curl;
}

}  // namespace vmem::cluster
