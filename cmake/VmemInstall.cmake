# What an installation holds, relative to its prefix: the two libraries, the program, the public
# headers, and the files by which CMake and pkg-config find them. Third parties are inside the
# libraries, so the package files name none. The component "runtime" is what running needs; a Python
# wheel (pyproject.toml) holds that beside its own files.
include(CMakePackageConfigHelpers)

add_library(vmem::vmem ALIAS vmem)
set_target_properties(vmem PROPERTIES OUTPUT_NAME vmem_gpu)  # PMDK's libvmem has libvmem.so
target_include_directories(vmem PUBLIC
  "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
target_link_options(vmem PRIVATE "LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/vmem.map")
set_target_properties(vmem PROPERTIES LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/vmem.map")
if(NOT SKBUILD)  # links cannot be in a wheel, where the library has its plain name
  set_target_properties(vmem PROPERTIES SOVERSION 0 VERSION "${PROJECT_VERSION}")
endif()

install(TARGETS vmem EXPORT vmemTargets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT runtime)
install(TARGETS vmem_preload LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT runtime)
# The emulated driver, beside the libraries that load it, and under the CUDA driver's name for `vmem
# run --driver emulated`.
set(emulated_folder "${CMAKE_INSTALL_LIBDIR}/vmem/emulated")
if(SKBUILD)
  install(PROGRAMS "$<TARGET_FILE:vmem_emu>" DESTINATION "${emulated_folder}" RENAME libcuda.so.1 COMPONENT runtime)
else()
  install(TARGETS vmem_emu LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT runtime)
  install(FILES "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/vmem/emulated/libcuda.so.1" DESTINATION "${emulated_folder}" COMPONENT runtime)
endif()
install(TARGETS vmem_ucx_address RUNTIME DESTINATION "${CMAKE_INSTALL_LIBEXECDIR}/vmem" COMPONENT runtime)
install(DIRECTORY python/ DESTINATION "${CMAKE_INSTALL_DATADIR}/vmem/python" PATTERN "__pycache__" EXCLUDE)
if(VMEM_BUILD_TOOLS)
  install(TARGETS vmem_program RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT runtime)
endif()
install(FILES include/vmem/cluster.h include/vmem/cluster.hpp include/vmem/vmem.h include/vmem/vmem.hpp include/vmem/memory_resource.hpp include/vmem/torch.h
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/vmem")
install(FILES LICENSE README.md ARCHITECTURE.md SECURITY.md DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY docs DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT runtime)

# Compiled in, so their licences go along, from where Debian keeps them.
foreach(package libfmt-dev libspdlog-dev libcli11-dev nlohmann-json3-dev liblz4-dev libzstd-dev libstdc++6 liburing-dev libxxhash-dev libssl-dev libboost-dev)
  install(FILES "/usr/share/doc/${package}/copyright" DESTINATION "${CMAKE_INSTALL_DOCDIR}/third-party"
    RENAME "${package}" COMPONENT runtime OPTIONAL)
endforeach()
install(FILES /usr/share/doc/libgtest-dev/copyright DESTINATION "${CMAKE_INSTALL_DOCDIR}/third-party"
  RENAME libgtest-dev COMPONENT tests OPTIONAL EXCLUDE_FROM_ALL)

# What is inside of the binaries (CycloneDX), asked of Ninja when they are installed.
if(CMAKE_GENERATOR STREQUAL "Ninja")
  set(shipped "$<TARGET_FILE:vmem>" "$<TARGET_FILE:vmem_emu>" "$<TARGET_FILE:vmem_preload>" "$<TARGET_FILE:vmem_ucx_address>")
  if(VMEM_BUILD_TOOLS)
    list(APPEND shipped "$<TARGET_FILE:vmem_program>")
  endif()
  list(JOIN shipped "\n" lines)
  file(GENERATE OUTPUT "${CMAKE_BINARY_DIR}/shipped.txt" CONTENT "${lines}\n") # for scripts/dist.sh
  list(JOIN shipped "]] [[" shipped)
  install(CODE "execute_process(COMMAND python3 [[${PROJECT_SOURCE_DIR}/scripts/sbom.py]] [[${CMAKE_BINARY_DIR}]]
    \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DOCDIR}/sbom.cdx.json\" [[${PROJECT_VERSION}]] [[${shipped}]]
    COMMAND_ERROR_IS_FATAL ANY)" COMPONENT runtime)
endif()

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/vmem")
install(EXPORT vmemTargets NAMESPACE vmem:: DESTINATION "${package_dir}")
configure_package_config_file(cmake/vmemConfig.cmake.in "${CMAKE_BINARY_DIR}/vmemConfig.cmake"
  INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/vmemConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/vmemConfig.cmake" "${CMAKE_BINARY_DIR}/vmemConfigVersion.cmake"
  DESTINATION "${package_dir}")

file(RELATIVE_PATH pkgconfig_to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(cmake/vmem.pc.in "${CMAKE_BINARY_DIR}/vmem.pc" @ONLY)
install(FILES "${CMAKE_BINARY_DIR}/vmem.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
