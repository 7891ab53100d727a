# Third-party libraries. Targets have the names that the packages' own CMake files use.
find_package(Threads REQUIRED)
find_package(Boost REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
if(VMEM_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()

# fmt and spdlog are linked statically: a libfmt.so would have to be shipped, and would load a
# second libstdc++.so into the user's program. Debian has no static library of either, so fmt 9 is
# compiled here once; other versions are used as headers.
find_path(VMEM_FMT_INCLUDE fmt/format-inl.h REQUIRED)
file(STRINGS "${VMEM_FMT_INCLUDE}/fmt/core.h" fmt_version REGEX "^#define FMT_VERSION [0-9]+")
if(fmt_version MATCHES " 9[0-9][0-9][0-9][0-9]$")
  add_library(vmem_fmt STATIC "${CMAKE_CURRENT_LIST_DIR}/fmt.cpp")
  target_include_directories(vmem_fmt SYSTEM PUBLIC "${VMEM_FMT_INCLUDE}")
else()
  add_library(vmem_fmt INTERFACE)
  target_compile_definitions(vmem_fmt INTERFACE FMT_HEADER_ONLY)
  target_include_directories(vmem_fmt SYSTEM INTERFACE "${VMEM_FMT_INCLUDE}")
endif()
add_library(fmt::fmt ALIAS vmem_fmt)

find_path(VMEM_SPDLOG_INCLUDE spdlog/spdlog.h REQUIRED)
add_library(vmem_spdlog INTERFACE)
target_compile_definitions(vmem_spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
target_include_directories(vmem_spdlog SYSTEM INTERFACE "${VMEM_SPDLOG_INCLUDE}")
target_link_libraries(vmem_spdlog INTERFACE fmt::fmt Threads::Threads)
add_library(spdlog::spdlog ALIAS vmem_spdlog)
add_library(spdlog::spdlog_header_only ALIAS vmem_spdlog)

# vmem_codec_library(NAME HEADER): the target NAME::NAME, the static library if there is one.
function(vmem_codec_library name header)
  find_path(VMEM_${name}_INCLUDE ${header} REQUIRED)
  find_library(VMEM_${name}_LIBRARY NAMES lib${name}.a ${name} REQUIRED)
  add_library(vmem_${name} INTERFACE)
  target_include_directories(vmem_${name} SYSTEM INTERFACE "${VMEM_${name}_INCLUDE}")
  target_link_libraries(vmem_${name} INTERFACE "${VMEM_${name}_LIBRARY}")
  add_library(${name}::${name} ALIAS vmem_${name})
endfunction()
vmem_codec_library(lz4 lz4.h)
vmem_codec_library(zstd zstd.h)

# Only cuda.h; the driver is loaded at run time. The header comes from a toolkit or from the Python
# package index (scripts/bootstrap.sh puts it into .deps, pip into the folder of its build).
find_path(VMEM_CUDA_INCLUDE cuda.h
  HINTS "${PROJECT_SOURCE_DIR}/.deps/cuda/include" "$ENV{CUDA_HOME}/include" /usr/local/cuda/include)
find_path(VMEM_CUDA_INCLUDE cuda.h PATH_SUFFIXES nvidia/cu13/include REQUIRED)
file(STRINGS "${VMEM_CUDA_INCLUDE}/cuda.h" cuda_version REGEX "^#define CUDA_VERSION 1[3-9][0-9]+")
if(NOT cuda_version)
  message(FATAL_ERROR "${VMEM_CUDA_INCLUDE}/cuda.h is not CUDA 13's. Run scripts/bootstrap.sh, or set CUDA_HOME.")
endif()
add_library(vmem_cuda_headers INTERFACE)
target_include_directories(vmem_cuda_headers SYSTEM INTERFACE "${VMEM_CUDA_INCLUDE}")

# Linked statically, as fmt.
find_path(VMEM_URING_INCLUDE liburing.h REQUIRED)
find_library(VMEM_URING_LIBRARY NAMES liburing.a REQUIRED)
# Its headers name no version before 2.4.
execute_process(COMMAND pkg-config --modversion liburing OUTPUT_VARIABLE VMEM_URING_VERSION OUTPUT_STRIP_TRAILING_WHITESPACE
  COMMAND_ERROR_IS_FATAL ANY)
add_library(vmem_uring INTERFACE)
target_include_directories(vmem_uring SYSTEM INTERFACE "${VMEM_URING_INCLUDE}")
target_link_libraries(vmem_uring INTERFACE "${VMEM_URING_LIBRARY}")

# Used as a header (XXH_INLINE_ALL).
find_path(VMEM_XXHASH_INCLUDE xxhash.h REQUIRED)
add_library(vmem_xxhash INTERFACE)
target_include_directories(vmem_xxhash SYSTEM INTERFACE "${VMEM_XXHASH_INCLUDE}")

# UCX is needed on RDMA fabrics only: src/rdma compiles its headers and loads the library at run
# time.
find_path(VMEM_UCX_INCLUDE ucp/api/ucp.h REQUIRED)
add_library(vmem_network_headers INTERFACE)
target_include_directories(vmem_network_headers SYSTEM INTERFACE "${VMEM_UCX_INCLUDE}" "${VMEM_XXHASH_INCLUDE}")

# Linked statically with hidden symbols: a program may have another OpenSSL loaded, whose settings
# and exit handlers must not apply here.
find_path(VMEM_OPENSSL_INCLUDE openssl/ssl.h REQUIRED)
find_library(VMEM_SSL_LIBRARY NAMES libssl.a REQUIRED)
find_library(VMEM_CRYPTO_LIBRARY NAMES libcrypto.a REQUIRED)
add_library(vmem_openssl INTERFACE)
target_include_directories(vmem_openssl SYSTEM INTERFACE "${VMEM_OPENSSL_INCLUDE}")
target_link_libraries(vmem_openssl INTERFACE "${VMEM_SSL_LIBRARY}" "${VMEM_CRYPTO_LIBRARY}" Threads::Threads ${CMAKE_DL_LIBS})
target_link_options(vmem_openssl INTERFACE "LINKER:--exclude-libs,libssl.a:libcrypto.a")

# Headers only: src/topology loads hwloc at run time, and reports what is unknown without it.
find_path(VMEM_HWLOC_INCLUDE hwloc.h REQUIRED)
add_library(vmem_hwloc_headers INTERFACE)
target_include_directories(vmem_hwloc_headers SYSTEM INTERFACE "${VMEM_HWLOC_INCLUDE}")
