# Build options; CMakePresets.json has the useful combinations.
option(VMEM_BUILD_TESTS "Build the tests" ON)
option(VMEM_BUILD_TOOLS "Build the vmem program and its benchmark" ON)
option(VMEM_FUZZ "Build libFuzzer's targets in place of the tests; needs clang" OFF)
# Compilers that we do not build with warn of other things.
set(werror_default ON)
if(SKBUILD AND NOT (CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^12\\."))
  set(werror_default OFF)
endif()
option(VMEM_WERROR "Treat warnings as errors" ${werror_default})
set(VMEM_SANITIZE "" CACHE STRING "Sanitizers: empty, 'address;undefined' or 'thread', and 'fuzzer-no-link' with VMEM_FUZZ")
# libvmem_gpu.so is loaded into programs that may use a newer libstdc++ than this build does.
set(static_cxx_default ON)
if(VMEM_SANITIZE)
  set(static_cxx_default OFF) # the sanitizers intercept the shared library
endif()
option(VMEM_STATIC_CXX "Link libstdc++ and libgcc statically" ${static_cxx_default})

set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# Build type Sanitize: fast enough to run the whole suite, with assertions and readable stacks.
set(CMAKE_C_FLAGS_SANITIZE "-O1 -g1")
set(CMAKE_CXX_FLAGS_SANITIZE "-O1 -g1 -D_GLIBCXX_ASSERTIONS")

# Programs find libraries relative to themselves, so a build folder or an installation works
# wherever it is moved.
include(GNUInstallDirs)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/archive")
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
set(CMAKE_BUILD_RPATH "$ORIGIN/../lib" "$ORIGIN")
file(RELATIVE_PATH bin_to_lib "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
set(CMAKE_INSTALL_RPATH "$ORIGIN/${bin_to_lib}" "$ORIGIN")
set(VMEM_INSTALL_TESTDIR "${CMAKE_INSTALL_LIBEXECDIR}/vmem/tests")

find_program(VMEM_CCACHE ccache)
if(VMEM_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER "${VMEM_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${VMEM_CCACHE}")
  # pip sets no variables: with these, as in the Makefile, it finds the objects of other builds.
  if(SKBUILD)
    set(with_names "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${VMEM_CCACHE}")
    set(CMAKE_C_COMPILER_LAUNCHER "${with_names}")
    set(CMAKE_CXX_COMPILER_LAUNCHER "${with_names}")
  endif()
endif()

add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers)
# Paths in messages are relative to the source tree.
add_compile_options("-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=")
if(VMEM_WERROR)
  add_compile_options(-Werror)
endif()
add_link_options(-Wl,-z,defs -Wl,-z,now -Wl,--as-needed)
if(VMEM_STATIC_CXX)
  add_link_options(-static-libgcc "$<$<LINK_LANGUAGE:CXX>:-static-libstdc++>")
endif()
foreach(sanitizer IN LISTS VMEM_SANITIZE)
  add_compile_options(-fsanitize=${sanitizer} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${sanitizer})
endforeach()
# For targets that read enumerations of the driver's interface from programs, which may store any
# number there. g++ gives that a meaning (no -fstrict-enums).
set(VMEM_ANY_ENUM_VALUE "")
if("undefined" IN_LIST VMEM_SANITIZE)
  set(VMEM_ANY_ENUM_VALUE -fno-sanitize=enum)
endif()
if("thread" IN_LIST VMEM_SANITIZE)
  add_compile_options(-Wno-tsan) # of fences in Boost.Asio; its locks are visible to ThreadSanitizer
endif()
