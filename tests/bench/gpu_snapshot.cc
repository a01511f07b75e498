// The cost of a snapshot from the GPU, as one line of JSON: its time as a ratio to a plain pinned copy of the
// same bytes, the host's stall, and its effect on a stream busy with bf16 matrix products.
//
//   gpu_snapshot [GIGABYTES=4] [ROUNDS=5] [SLOT_MIB=64] [SLOTS=2]
//
// Each round times all of them, in an order that rotates; ratios are medians of the rounds'. The arena and
// all digests are compared with the plain copy's bytes before any time counts. Without a GPU it reports that.
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "ckpt/io/file_system.h"
#include "runtime/snapshot/device_snapshot.h"
#include "tests/runtime/snapshot/host_snapshot.h"

namespace cairn {
namespace {

constexpr int kMatrix = 8192;  // rows and columns

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  fmt::print(stderr, "gpu_snapshot: {}: {}\n", what, cudaGetErrorString(error));
  std::exit(2);
}

void Check(cublasStatus_t error, const char* what) {
  if (error == CUBLAS_STATUS_SUCCESS) return;
  fmt::print(stderr, "gpu_snapshot: {}: {}\n", what, cublasGetStatusString(error));
  std::exit(2);
}

void Check(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "gpu_snapshot: {}\n", status.message());
  std::exit(2);
}

std::byte* DeviceBytes(uint64_t bytes) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, bytes), "cudaMalloc");
  return static_cast<std::byte*>(memory);
}

// Pages that were touched, huge ones if available, as in runtime/snapshot/snapshot.cc.
std::span<std::byte> TouchedPages(uint64_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Check(NoSpace("{} bytes of host memory are not available", bytes));
  (void)::madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 1, bytes);
  return {static_cast<std::byte*>(memory), bytes};
}

// Random bfloat16 in [1, 2): zeros and NaNs would make the products faster or the same.
void FillRandom(std::byte* device, uint64_t bytes) {
  std::mt19937 random(1);
  std::vector<uint16_t> block((32 << 20) + 9);
  for (uint16_t& value : block) value = 0x3F80 | (random() & 0x7F);
  for (uint64_t at = 0; at < bytes; at += block.size() * 2)
    Check(cudaMemcpy(device + at, block.data(), std::min<uint64_t>(block.size() * 2, bytes - at),
                     cudaMemcpyHostToDevice),
          "filling the device");
}

// One after another on the device and, at whole pages, in the arena: large matrices with small vectors
// between.
std::vector<SnapshotPiece> MakePieces(const std::byte* device, uint64_t bytes) {
  constexpr uint64_t kSizes[] = {64 << 20, 16 << 10, 16 << 20, 4 << 10, (48 << 20) + 6, 200};
  std::vector<SnapshotPiece> pieces;
  uint64_t source = 0, offset = 0;
  for (size_t i = 0; source < bytes; ++i) {
    const uint64_t size = std::min(kSizes[i % std::size(kSizes)], bytes - source);
    pieces.push_back({device + source, size, offset, i});
    source += size;
    offset += (size + kPageBytes - 1) / kPageBytes * kPageBytes;
  }
  return pieces;
}

// The trainer's stream: enqueues products and times them on the GPU.
class BusyStream {
 public:
  BusyStream() {
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "compute stream");
    Check(cublasCreate(&blas_), "cublasCreate");
    Check(cublasSetStream(blas_, stream_), "cublasSetStream");
    for (std::byte*& matrix : matrices_) FillRandom(matrix = DeviceBytes(kMatrixBytes), kMatrixBytes);
    Check(cudaEventCreate(&begin_), "event");
    Check(cudaEventCreate(&end_), "event");
  }
  cudaStream_t stream() const { return stream_; }

  void Enqueue(int products) {
    const float one = 1, zero = 0;
    Check(cudaEventRecord(begin_, stream_), "event");
    for (int i = 0; i < products; ++i)
      Check(cublasGemmEx(blas_, CUBLAS_OP_N, CUBLAS_OP_N, kMatrix, kMatrix, kMatrix, &one, matrices_[0],
                         CUDA_R_16BF, kMatrix, matrices_[1], CUDA_R_16BF, kMatrix, &zero, matrices_[2],
                         CUDA_R_16BF, kMatrix, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
            "cublasGemmEx");
    Check(cudaEventRecord(end_, stream_), "event");
  }
  double Seconds() {
    float milliseconds = 0;
    Check(cudaEventSynchronize(end_), "products");
    Check(cudaEventElapsedTime(&milliseconds, begin_, end_), "event");
    return milliseconds / 1000;
  }

 private:
  static constexpr uint64_t kMatrixBytes = uint64_t{2} * kMatrix * kMatrix;
  cudaStream_t stream_ = nullptr;
  cublasHandle_t blas_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::byte* matrices_[3] = {};
};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Round {
  double plain = 0, snapshot = 0, begin = 0, fence = 0, step = 0, busy_step = 0,
         busy_snapshot = 0;  // seconds
};

class Bench {
 public:
  Bench(uint64_t bytes, CudaSnapshotOptions options)
      : bytes_(bytes), device_(DeviceBytes(bytes)), pieces_(MakePieces(device_, bytes)) {
    FillRandom(device_, bytes_);
    plain_ = TouchedPages(bytes_);
    arena_ = TouchedPages(pieces_.back().offset + bytes_ - (pieces_.back().source - device_) + kPageBytes);
    Check(cudaHostRegister(plain_.data(), plain_.size(), cudaHostRegisterDefault), "cudaHostRegister");
    options.compute_stream = busy_.stream();
    auto snapshot = NewCudaSnapshot(options);
    Check(snapshot.status());
    snapshot_ = std::move(snapshot).value();
    Check(snapshot_->SetArena(arena_));
  }

  double PlainCopy() {
    const double start = Now();
    Check(cudaMemcpyAsync(plain_.data(), device_, bytes_, cudaMemcpyDeviceToHost, busy_.stream()),
          "plain copy");
    Check(cudaStreamSynchronize(busy_.stream()), "plain copy");
    return Now() - start;
  }

  double Snapshot() {
    const double start = Now();
    Check(snapshot_->Begin(pieces_));
    digests_ = Take();
    return Now() - start;
  }

  double Step(int products) {
    busy_.Enqueue(products);
    return busy_.Seconds();
  }

  // The products run during the snapshot, the fence comes after them.
  void BusyStep(int products, Round& round) {
    const double begin = Now();
    Check(snapshot_->Begin(pieces_));
    round.begin = Now() - begin;
    busy_.Enqueue(products);
    round.busy_step = busy_.Seconds();
    const double fence = Now();
    Check(snapshot_->FenceSources());
    round.fence = Now() - fence;
    digests_ = Take();
    round.busy_snapshot = Now() - begin;
  }

  // The last snapshot against the last plain copy.
  bool Holds() {
    std::vector<SnapshotPiece> host = pieces_;
    for (SnapshotPiece& piece : host) piece.source = plain_.data() + (piece.source - device_);
    bool same = true;
    for (const SnapshotPiece& piece : host)
      same = same && std::equal(piece.source, piece.source + piece.bytes, arena_.data() + piece.offset);
    const auto reference = NewHostSnapshot();
    Check(reference->SetArena(arena_));
    Check(reference->Begin(host));
    return same && reference->Wait().value() == digests_;
  }

 private:
  SnapshotDigests Take() {
    auto digests = snapshot_->Wait();
    Check(digests.status());
    return std::move(digests).value();
  }

  uint64_t bytes_;
  std::byte* device_;
  std::vector<SnapshotPiece> pieces_;
  BusyStream busy_;
  std::span<std::byte> plain_, arena_;
  std::unique_ptr<DeviceSnapshot> snapshot_;
  SnapshotDigests digests_;
};

int Main(uint64_t bytes, int rounds, const CudaSnapshotOptions& options) {
  cudaDeviceProp properties{};
  Check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  Bench bench(bytes, options);
  // Warm up, and find how many products take a little longer than the copy.
  const double plain = std::min(bench.PlainCopy(), bench.PlainCopy());
  bench.Snapshot();
  bench.Step(10);
  const int products = std::max(1, static_cast<int>(1.25 * plain / (bench.Step(10) / 10)));
  std::vector<double> ratio, busy_ratio, step_ratio, begin_ratio, fence_ratio, plain_gbs, snapshot_gbs;
  bool verified = true;
  for (int i = 0; i < rounds; ++i) {
    Round round;
    for (int j = 0; j < 4; ++j) switch ((i + j) % 4) {
        case 0:
          round.plain = bench.PlainCopy();
          break;
        case 1:
          round.snapshot = bench.Snapshot();
          break;
        case 2:
          round.step = bench.Step(products);
          break;
        case 3:
          bench.BusyStep(products, round);
          break;
      }
    verified = verified && bench.Holds();
    ratio.push_back(round.plain / round.snapshot);
    busy_ratio.push_back(round.plain / round.busy_snapshot);
    step_ratio.push_back(round.busy_step / round.step);
    begin_ratio.push_back(round.begin / round.plain);
    fence_ratio.push_back(round.fence / round.plain);
    plain_gbs.push_back(bytes / round.plain / 1e9);
    snapshot_gbs.push_back(bytes / round.snapshot / 1e9);
  }
  const nlohmann::json line = {{"gpu", properties.name},
                               {"bytes", bytes},
                               {"rounds", rounds},
                               {"verified", verified},
                               {"plain_gb_per_s", Median(plain_gbs)},
                               {"snapshot_gb_per_s", Median(snapshot_gbs)},
                               {"slots", options.slots},
                               {"slot_mib", options.slot_bytes >> 20},
                               {"copy_ratio", Median(ratio)},         // of a plain copy's speed; 0.97 wanted
                               {"busy_ratio", Median(busy_ratio)},    // likewise, beside the products
                               {"step_ratio", Median(step_ratio)},    // 1.02 wanted
                               {"begin_ratio", Median(begin_ratio)},  // host's stall, of a plain copy's time
                               {"fence_ratio", Median(fence_ratio)},
                               {"products_per_step", products}};
  fmt::print("{}\n", line.dump());
  return verified ? 0 : 1;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    fmt::print("gpu_snapshot: no GPU here ({})\n",
               found != cudaSuccess ? cudaGetErrorString(found) : "0 devices");
    return 0;
  }
  const double gigabytes = argc > 1 ? std::atof(argv[1]) : 4;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  cairn::CudaSnapshotOptions options;
  if (argc > 3) options.slot_bytes = std::strtoull(argv[3], nullptr, 10) << 20;
  if (argc > 4) options.slots = std::atoi(argv[4]);
  if (gigabytes <= 0 || rounds <= 0) {
    fmt::print(stderr, "gpu_snapshot [GIGABYTES] [ROUNDS] [SLOT_MIB] [SLOTS]: all are more than 0\n");
    return 2;
  }
  return cairn::Main(static_cast<uint64_t>(gigabytes * 1e9), rounds, options);
}
