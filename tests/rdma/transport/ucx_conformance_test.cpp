#include <gmock/gmock.h>

#include "rdma/transport/transport_conformance.hpp"
#include "rdma/transport/ucx_pair.hpp"

namespace vmem::rdma {

INSTANTIATE_TYPED_TEST_SUITE_P(UcxOverTcp, TransportConformance, TcpPair);
INSTANTIATE_TYPED_TEST_SUITE_P(UcxOverChannels, TransportConformance, ChannelsPair);
INSTANTIATE_TYPED_TEST_SUITE_P(UcxOverSharedMemory, TransportConformance, SharedMemoryPair);

}  // namespace vmem::rdma
