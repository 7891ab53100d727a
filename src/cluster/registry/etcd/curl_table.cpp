#include "cluster/registry/etcd/curl_table.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace vmem::cluster {
namespace {

constexpr const char* kLibrary = "libcurl.so.4";
constexpr const char* kAdvice = "a registry needs libcurl 7.66 or newer: install it (Debian, Ubuntu: libcurl4)";

Result<void*> find_function(void* library, const char* name) {
  if (void* const function = dlsym(library, name)) return function;
  return fail(VMEM_ERROR_UNSUPPORTED, fmt::format("{} lacks {}; {}", kLibrary, name, kAdvice));
}

}  // namespace

Result<CurlRef> load_curl() {
  // Never unloaded: a thread that looks up a name may outlive every owner of the handle.
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return fail(VMEM_ERROR_UNSUPPORTED,
                fmt::format("{} cannot be loaded ({}); {}", kLibrary, reason ? reason : "?", kAdvice));
  }
  auto curl = std::make_shared<CurlTable>();
#define VMEM_RESOLVE(name)                                            \
  {                                                                   \
    VMEM_ASSIGN(void* const function, find_function(library, #name)); \
    curl->name = reinterpret_cast<decltype(curl->name)>(function);    \
  }
  VMEM_CURL_FUNCTIONS(VMEM_RESOLVE)
#undef VMEM_RESOLVE
  if (const CURLcode code = curl->curl_global_init(CURL_GLOBAL_DEFAULT); code != CURLE_OK)
    return fail(VMEM_ERROR_UNSUPPORTED, fmt::format("curl_global_init failed: {}", curl->curl_easy_strerror(code)));
  return curl;
}

}  // namespace vmem::cluster
