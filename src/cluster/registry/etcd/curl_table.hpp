// All libcurl functions that vmem calls, loaded from libcurl.so.4 at run time: only clusters with a
// registry need the library.
#pragma once

#define CURL_DISABLE_TYPECHECK  // its macros would replace the calls through the table
#include <curl/curl.h>

#include <memory>

#include "base/status.hpp"

namespace vmem::cluster {

#define VMEM_CURL_FUNCTIONS(X) \
  X(curl_global_init)          \
  X(curl_version_info)         \
  X(curl_easy_init)            \
  X(curl_easy_cleanup)         \
  X(curl_easy_setopt)          \
  X(curl_easy_getinfo)         \
  X(curl_easy_strerror)        \
  X(curl_slist_append)         \
  X(curl_slist_free_all)       \
  X(curl_multi_init)           \
  X(curl_multi_cleanup)        \
  X(curl_multi_setopt)         \
  X(curl_multi_add_handle)     \
  X(curl_multi_remove_handle)  \
  X(curl_multi_perform)        \
  X(curl_multi_poll)           \
  X(curl_multi_info_read)      \
  X(curl_multi_strerror)

struct CurlTable {
#define VMEM_MEMBER(name) decltype(&::name) name = nullptr;
  VMEM_CURL_FUNCTIONS(VMEM_MEMBER)
#undef VMEM_MEMBER
};

// Shared by handles, whose deleters need it.
using CurlRef = std::shared_ptr<const CurlTable>;

// The library is initialised and never unloaded. Errors: UNSUPPORTED, naming the library and what
// to install.
Result<CurlRef> load_curl();

}  // namespace vmem::cluster
