#pragma once

#include <cuda.h>

#include <cstddef>

extern "C" {
int ncclAllReduce(const void* from, void* to, std::size_t count, int type, int operation, struct ncclComm*, CUstream);
int ncclGroupStart();
int ncclGroupEnd();
int ncclCommRegister(struct ncclComm*, void* buffer, std::size_t bytes, void** handle);
int ncclCommDeregister(struct ncclComm*, void* handle);
}

// NCCL's functions as the dynamic linker resolves them.
struct NcclUser {
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclCommRegister) comm_register;
  decltype(&ncclCommDeregister) comm_deregister;
};
