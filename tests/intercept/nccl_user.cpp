// A library linked with NCCL, in a program that loads it, as Python loads its extensions.
#include "intercept/nccl_user.hpp"

namespace {
const NcclUser functions{ncclAllReduce, ncclGroupStart, ncclGroupEnd, ncclCommRegister, ncclCommDeregister};
}

extern "C" const NcclUser* nccl_user() { return &functions; }
