# Third parties, each used by the module that names it. Names are those that the packages' own CMake files give.
find_package(Threads REQUIRED)
find_package(Boost REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
if(VMEM_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()

# fmt and spdlog become part of our binaries: a libfmt.so would have to be shipped, and it would bring its own libstdc++.so
# into other people's programs. Debian has no static ones, so fmt 9 is compiled here, once; other versions are used as headers.
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

# cuda.h only; the driver is loaded at run time. A toolkit, or the headers from the Python package index
# (scripts/bootstrap.sh puts them into .deps, pip into the folder where it builds a wheel).
find_path(VMEM_CUDA_INCLUDE cuda.h
  HINTS "${PROJECT_SOURCE_DIR}/.deps/cuda/include" "$ENV{CUDA_HOME}/include" /usr/local/cuda/include)
find_path(VMEM_CUDA_INCLUDE cuda.h PATH_SUFFIXES nvidia/cu13/include REQUIRED)
file(STRINGS "${VMEM_CUDA_INCLUDE}/cuda.h" cuda_version REGEX "^#define CUDA_VERSION 1[3-9][0-9]+")
if(NOT cuda_version)
  message(FATAL_ERROR "${VMEM_CUDA_INCLUDE}/cuda.h is not CUDA 13's. Run scripts/bootstrap.sh, or set CUDA_HOME.")
endif()
add_library(vmem_cuda_headers INTERFACE)
target_include_directories(vmem_cuda_headers SYSTEM INTERFACE "${VMEM_CUDA_INCLUDE}")
