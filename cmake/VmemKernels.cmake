# vmem_embed_kernels(TARGET FILE.cu SYMBOL [LEAST]): compiles GPU kernels with nvcc into a fat
# binary of sm_90 code and PTX, and links its bytes into TARGET as
#     extern "C" const unsigned char SYMBOL[];
#     extern "C" const unsigned long SYMBOL_bytes;
# for cuModuleLoadData. The PTX is of compute capability LEAST (default 90); the driver compiles it
# for other GPUs. Without nvcc the image is empty and SYMBOL_bytes is 0. Includes are relative to
# the project's root and to src/; a change to an included file rebuilds the image.
find_program(VMEM_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" /usr/local/cuda/bin)
if(NOT VMEM_NVCC)
  message(STATUS "nvcc not found: programs are built without GPU kernels")
endif()

set(VMEM_KERNELS_EMBED_SCRIPT "${CMAKE_CURRENT_LIST_DIR}/embed_bytes.cmake")

function(vmem_embed_kernels target source symbol)
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/${symbol}.cpp")
  set(fatbin "")
  set(least 90)
  if(ARGC GREATER 3)
    set(least "${ARGV3}")
  endif()
  if(VMEM_NVCC)
    set(fatbin "${CMAKE_CURRENT_BINARY_DIR}/${symbol}.fatbin")
    add_custom_command(OUTPUT "${fatbin}"
      COMMAND "${VMEM_NVCC}" -fatbin -std=c++20 -O3
        -gencode arch=compute_90,code=sm_90 -gencode arch=compute_${least},code=compute_${least}
        "-I${PROJECT_SOURCE_DIR}" "-I${PROJECT_SOURCE_DIR}/src"
        -MD -MF "${fatbin}.d" -o "${fatbin}" "${CMAKE_CURRENT_SOURCE_DIR}/${source}"
      MAIN_DEPENDENCY "${source}"
      DEPFILE "${fatbin}.d"
      COMMENT "Compiling GPU kernels ${source}"
      VERBATIM)
  endif()
  add_custom_command(OUTPUT "${generated}"
    COMMAND "${CMAKE_COMMAND}" "-DINPUT=${fatbin}" "-DOUTPUT=${generated}" "-DSYMBOL=${symbol}"
      -P "${VMEM_KERNELS_EMBED_SCRIPT}"
    DEPENDS ${fatbin} "${VMEM_KERNELS_EMBED_SCRIPT}"
    VERBATIM)
  target_sources(${target} PRIVATE "${generated}")
endfunction()
