# What an installation holds, relative to its prefix: the two libraries, the program, the public headers, and the files by
# which CMake and pkg-config find them. Third parties are inside the libraries, so the package files name none. The component
# "runtime" is what running needs; a Python wheel (pyproject.toml) holds that beside its own files.
include(CMakePackageConfigHelpers)

add_library(vmem::vmem ALIAS vmem)
target_include_directories(vmem PUBLIC
  "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
target_link_options(vmem PRIVATE "LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/vmem.map")
set_target_properties(vmem PROPERTIES LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/vmem.map")
if(NOT SKBUILD)  # links cannot be in a wheel, where the library has its plain name
  set_target_properties(vmem PROPERTIES SOVERSION 0 VERSION "${PROJECT_VERSION}")
endif()

install(TARGETS vmem EXPORT vmemTargets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT runtime)
install(TARGETS vmem_emu vmem_preload LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT runtime)
install(TARGETS vmem_ucx_address RUNTIME DESTINATION "${CMAKE_INSTALL_LIBEXECDIR}/vmem" COMPONENT runtime)
install(DIRECTORY python/ DESTINATION "${CMAKE_INSTALL_DATADIR}/vmem/python" PATTERN "__pycache__" EXCLUDE)
if(VMEM_BUILD_TOOLS)
  install(TARGETS vmem_program RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT runtime)
endif()
install(FILES include/vmem/vmem.h include/vmem/vmem.hpp include/vmem/torch.h DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/vmem")
install(FILES LICENSE README.md ARCHITECTURE.md SECURITY.md DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# Compiled in, so their licences go along, from where Debian keeps them.
foreach(package libfmt-dev libspdlog-dev libcli11-dev nlohmann-json3-dev liblz4-dev libzstd-dev libstdc++6 liburing-dev libxxhash-dev libssl-dev libboost-dev)
  install(FILES "/usr/share/doc/${package}/copyright" DESTINATION "${CMAKE_INSTALL_DOCDIR}/third-party"
    RENAME "${package}" COMPONENT runtime OPTIONAL)
endforeach()
install(FILES /usr/share/doc/libgtest-dev/copyright DESTINATION "${CMAKE_INSTALL_DOCDIR}/third-party"
  RENAME libgtest-dev COMPONENT tests OPTIONAL EXCLUDE_FROM_ALL)

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
