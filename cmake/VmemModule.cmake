# vmem_module(NAME SOURCES ... [PUBLIC targets] [PRIVATE targets]): one static library per folder of
# src/, linked into libvmem_gpu.so. The links are the dependency rules: a module sees the headers of
# those it names and no others' third parties.
function(vmem_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(vmem_${name} STATIC ${ARG_SOURCES})
  target_include_directories(vmem_${name} PUBLIC "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
  target_link_libraries(vmem_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
endfunction()

# Labels of the tests of the current folder: the modules that it is named after, from tests/ down
# (runtime, suballocator). Of examples/extending: examples, extending.
function(vmem_module_labels result)
  file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  string(REGEX REPLACE "^tests/" "" folder "${folder}")
  string(REPLACE "/" ";" folder "${folder}")
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()

# vmem_label_tests(): every test that the folder has added with add_test so far is labelled with its
# modules.
function(vmem_label_tests)
  vmem_module_labels(labels)
  get_property(tests DIRECTORY PROPERTY TESTS)
  foreach(test IN LISTS tests)
    set_property(TEST ${test} APPEND PROPERTY LABELS ${labels})
  endforeach()
endfunction()

# UndefinedBehaviorSanitizer watches the library and not the tests' own code, where it takes two
# fifths of the compiler's time.
set(VMEM_TEST_COMPILE_OPTIONS "")
if("undefined" IN_LIST VMEM_SANITIZE)
  set(VMEM_TEST_COMPILE_OPTIONS -fno-sanitize=undefined)
endif()
# A third of the linker's time, where it is installed. What ships is linked by the compiler's own.
find_program(VMEM_LLD ld.lld)
set(VMEM_TEST_LINK_OPTIONS "")
if(VMEM_LLD)
  set(VMEM_TEST_LINK_OPTIONS -fuse-ld=lld)
endif()

# vmem_test(NAME [ALONE] [HARDWARE] [LONG regex] SOURCES ... [LINK targets]): a GoogleTest program,
# one CTest test per TEST, each labelled with the modules of its folder. ALONE: with no other test
# beside them. LONG: those of them that `make check` and `make test` leave to the nightly, by the
# label long. HARDWARE (and so labelled): on real GPUs too, so they are part of the distribution
# (component "tests"), for machines that have a GPU and no compiler. The others need no GPU, so they
# run where they are built.
function(vmem_test name)
  cmake_parse_arguments(ARG "ALONE;HARDWARE" "LONG" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_options(${name} PRIVATE ${VMEM_TEST_COMPILE_OPTIONS})
  if(NOT ARG_HARDWARE)
    target_link_options(${name} PRIVATE ${VMEM_TEST_LINK_OPTIONS})
  endif()
  # Without the values: the bytes of a parameter differ from run to run, and the names must not.
  gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60)
  vmem_module_labels(labels)
  if(ARG_HARDWARE)
    list(APPEND labels hardware)
    file(RELATIVE_PATH test_to_lib "/${VMEM_INSTALL_TESTDIR}" "/${CMAKE_INSTALL_LIBDIR}")
    set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN/${test_to_lib}")
    install(TARGETS ${name} DESTINATION "${VMEM_INSTALL_TESTDIR}" COMPONENT tests EXCLUDE_FROM_ALL)
  endif()
  # Properties that are lists do not get through gtest_discover_tests; CTest sets them itself once
  # it knows the tests.
  set(properties "${CMAKE_CURRENT_BINARY_DIR}/${name}_properties.cmake")
  file(CONFIGURE OUTPUT "${properties}" @ONLY CONTENT [=[
foreach(test IN LISTS @name@_TESTS)
  set(labels "@labels@")
  if(NOT "@ARG_LONG@" STREQUAL "" AND test MATCHES [==[@ARG_LONG@]==])
    list(APPEND labels long)
  endif()
  set_tests_properties("${test}" PROPERTIES LABELS "${labels}" RUN_SERIAL "@ARG_ALONE@")
endforeach()
]=])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${properties}")
endfunction()
include(GoogleTest)
