// An ordinary CUDA C++ program with the static runtime that knows nothing of vmem. Fills more
// matrices than may fit, multiplies them with cuBLAS, moves rows and blocks with all kinds of
// copies, and prints checksums.
//     cuda_program check MATRICES [STEPS]     one JSON object: checksums of each step
//     cuda_program launches                   one JSON object: CPU time of an eight-pointer launch
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(call)                                                                                \
  do {                                                                                             \
    const auto check_result = (call);                                                              \
    if (int(check_result) != 0) {                                                                  \
      std::fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, int(check_result)); \
      std::exit(1);                                                                                \
    }                                                                                              \
  } while (false)

namespace {

constexpr int kSide = 4096;
constexpr std::size_t kBytes = sizeof(float) * kSide * kSide;  // 64 MiB

__global__ void fill(float* matrix, std::size_t count, std::uint32_t seed) {
  for (std::size_t i = blockIdx.x * std::size_t(blockDim.x) + threadIdx.x; i < count;
       i += std::size_t(gridDim.x) * blockDim.x) {
    std::uint32_t x = seed ^ std::uint32_t(i * 2654435761u);
    x ^= x << 13, x ^= x >> 17, x ^= x << 5;
    matrix[i] = float(x & 0xffff) / 65536.f - 0.5f;
  }
}

// An order-independent sum of the bits.
__global__ void checksum(const std::uint32_t* words, std::size_t count, unsigned long long* sum) {
  unsigned long long mine = 0;
  for (std::size_t i = blockIdx.x * std::size_t(blockDim.x) + threadIdx.x; i < count;
       i += std::size_t(gridDim.x) * blockDim.x)
    mine += words[i] * (2 * i + 1);
  atomicAdd(sum, mine);
}

__global__ void eight(float* a, float* b, float* c, float* d, float* e, float* f, float* g, float* h) {
  if (a == h) b[0] = c[0] + d[0] + e[0] + f[0] + g[0];
}

unsigned long long checksum_of(const std::vector<float*>& matrices, cudaStream_t stream) {
  unsigned long long* sum = nullptr;
  CHECK(cudaMallocAsync(&sum, sizeof *sum, stream));
  CHECK(cudaMemsetAsync(sum, 0, sizeof *sum, stream));
  for (const float* matrix : matrices)
    checksum<<<264, 512, 0, stream>>>(reinterpret_cast<const std::uint32_t*>(matrix), kBytes / 4, sum);
  unsigned long long result = 0;
  CHECK(cudaMemcpyAsync(&result, sum, sizeof result, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaFreeAsync(sum, stream));
  CHECK(cudaStreamSynchronize(stream));
  return result;
}

// The most memory that the GPU gave since the program began, libraries' workspaces included.
class Peak {
 public:
  Peak() { sample(); }
  void sample() {
    std::size_t free = 0, total = 0;
    CHECK(cudaMemGetInfo(&free, &total));
    most_ = std::max(most_, free);
    least_ = std::min(least_, free);
  }
  std::size_t bytes() const { return most_ - least_; }

 private:
  std::size_t most_ = 0, least_ = ~std::size_t{0};
};

int check(int count, int steps) {
  Peak peak;
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreate(&stream));
  cublasHandle_t blas = nullptr;
  CHECK(cublasCreate(&blas));
  CHECK(cublasSetStream(blas, stream));
  std::vector<float*> matrices(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    if (i % 2 == 0) {
      CHECK(cudaMalloc(&matrices[i], kBytes));
    } else {
      CHECK(cudaMallocAsync(&matrices[i], kBytes, stream));
    }
    fill<<<264, 512, 0, stream>>>(matrices[i], kBytes / 4, std::uint32_t(i + 1));
  }
  std::vector<float> host(kBytes / 4);
  std::printf("{\"case\": \"cuda_program\", \"digests\": [");
  std::vector<double> seconds;
  for (int step = 0; step < steps; ++step) {
    CHECK(cudaStreamSynchronize(stream));
    const auto began = std::chrono::steady_clock::now();
    const float one = 1.f / 64, half = 0.5f;
    for (std::size_t i = 0; i + 2 < matrices.size(); i += 3) {
      CHECK(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_T, kSide, kSide, kSide, &one, matrices[i], kSide, matrices[i + 1],
                        kSide, &half, matrices[i + 2], kSide));
    }
    // Copies a quarter matrix by rows, fills by rows, moves a whole matrix to the host, and copies
    // part of it back from pageable memory.
    constexpr std::size_t kPitch = sizeof(float) * kSide;
    for (std::size_t i = 0; i + 1 < matrices.size(); i += 5) {
      CHECK(cudaMemcpy2DAsync(matrices[i] + kSide / 2, kPitch, matrices[i + 1], kPitch, kPitch / 2, kSide / 2,
                              cudaMemcpyDeviceToDevice, stream));
      CHECK(cudaMemset2DAsync(matrices[i + 1], kPitch, step, kPitch / 4, 64, stream));
    }
    CHECK(cudaMemcpyAsync(host.data(), matrices.back(), kBytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(matrices.front(), host.data(), kBytes / 2, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpyAsync(matrices[1], matrices.back(), kBytes / 4, cudaMemcpyDefault, stream));
    const unsigned long long sum = checksum_of(matrices, stream);
    peak.sample();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
    std::printf("%s\"%016llx\"", step == 0 ? "" : ", ", sum);
  }
  std::printf("], \"steps_s\": [");
  for (std::size_t i = 0; i < seconds.size(); ++i) std::printf("%s%.6f", i == 0 ? "" : ", ", seconds[i]);
  std::printf("], \"peak_bytes\": %zu}\n", peak.bytes());
  for (std::size_t i = 0; i < matrices.size(); ++i)
    CHECK(i % 2 == 0 ? cudaFree(matrices[i]) : cudaFreeAsync(matrices[i], stream));
  CHECK(cublasDestroy(blas));
  CHECK(cudaStreamDestroy(stream));
  return 0;
}

int launches() {
  constexpr int kBatch = 512, kBatches = 400;
  std::vector<float*> at(8);
  for (float*& each : at) CHECK(cudaMalloc(&each, std::size_t{4} << 20));
  for (float* each : at) CHECK(cudaMemset(each, 0, std::size_t{4} << 20));
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::vector<double> ns;
  for (int batch = 0; batch < kBatches; ++batch) {
    CHECK(cudaStreamSynchronize(stream));  // so that no launch waits for room in the queue
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < kBatch; ++i)
      eight<<<1, 32, 0, stream>>>(at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7]);
    ns.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - began).count() / kBatch);
  }
  CHECK(cudaStreamSynchronize(stream));
  std::sort(ns.begin(), ns.end());
  std::printf("{\"case\": \"launches\", \"median_ns\": %.1f, \"least_ns\": %.1f}\n", ns[ns.size() / 2], ns.front());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc >= 3 && std::strcmp(argv[1], "check") == 0)
    return check(std::atoi(argv[2]), argc > 3 ? std::atoi(argv[3]) : 4);
  if (argc == 2 && std::strcmp(argv[1], "launches") == 0) return launches();
  std::fprintf(stderr, "usage: %s check MATRICES [STEPS] | launches\n", argv[0]);
  return 2;
}
