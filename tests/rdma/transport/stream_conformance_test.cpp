#include "rdma/transport/stream_pair.hpp"
#include "rdma/transport/transport_conformance.hpp"

namespace vmem::rdma {

INSTANTIATE_TYPED_TEST_SUITE_P(Unix, TransportConformance, UnixPair);
INSTANTIATE_TYPED_TEST_SUITE_P(Tls, TransportConformance, TlsPair);
INSTANTIATE_TYPED_TEST_SUITE_P(UnixChannels, TransportConformance, UnixChannelsPair);
INSTANTIATE_TYPED_TEST_SUITE_P(TlsChannels, TransportConformance, TlsChannelsPair);

}  // namespace vmem::rdma
