// The only instance of OpenSSL in this library: linked statically, with hidden symbols and a
// library context of its own. It reads no configuration file and registers no exit handler, so it
// shares nothing with an OpenSSL that the program has loaded.
#pragma once

#include <openssl/types.h>

#include <string>
#include <string_view>

#include "base/status.hpp"
#include "rdma/trust/key_memory.hpp"

namespace vmem::rdma {

// Created on first use, never freed. Errors: INTERNAL with OpenSSL's message; FORKED in a child.
Result<OSSL_LIB_CTX*> openssl();

// The error queue of this thread as one line; empties the queue.
std::string openssl_words();
// INTERNAL, with `what` and openssl_words().
std::unexpected<Error> openssl_failure(std::string_view what);

// Does nothing in a forked child, where OpenSSL's heap is zeros.
template <auto free_function, class T>
void free_openssl(T* object) noexcept {
  if (!openssl_is_wiped()) free_function(object);
}

// For std::unique_ptr over OpenSSL's types.
template <auto free_function>
struct OpenSslDelete {
  template <class T>
  void operator()(T* object) const noexcept {
    free_openssl<free_function>(object);
  }
};

}  // namespace vmem::rdma
