# vmem_module(NAME SOURCES ... [PUBLIC targets] [PRIVATE targets]): one static library per folder of src/, linked into
# libvmem.so. The links are the dependency rules: a module sees the headers of those it names and no others' third parties.
function(vmem_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(vmem_${name} STATIC ${ARG_SOURCES})
  target_include_directories(vmem_${name} PUBLIC "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
  target_link_libraries(vmem_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
endfunction()

# vmem_test(NAME [ALONE] SOURCES ... [LINK targets] [LABELS labels]): a GoogleTest program, one CTest test per TEST; ALONE: with no
# other test beside them. It is part of
# the distribution (component "tests"), so that the suite can run on machines that have a GPU and no compiler.
function(vmem_test name)
  cmake_parse_arguments(ARG "ALONE" "" "SOURCES;LINK;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gtest GTest::gmock GTest::gtest_main)
  set(properties "")
  if(ARG_LABELS)
    list(APPEND properties LABELS "${ARG_LABELS}")
  endif()
  if(ARG_ALONE)
    list(APPEND properties RUN_SERIAL TRUE)
  endif()
  if(properties)
    list(PREPEND properties PROPERTIES)
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 ${properties})
  file(RELATIVE_PATH test_to_lib "/${VMEM_INSTALL_TESTDIR}" "/${CMAKE_INSTALL_LIBDIR}")
  set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN/${test_to_lib}")
  install(TARGETS ${name} DESTINATION "${VMEM_INSTALL_TESTDIR}" COMPONENT tests EXCLUDE_FROM_ALL)
endfunction()
include(GoogleTest)
