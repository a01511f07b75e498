// Start, in this order: the world (MPI, torchrun's TCP store, or only this rank), with several ranks the
// status board under a random key and the watchdog, and NCCL last. NCCL needs a store for its rendezvous: the
// world's own if it has one, else one that rank 0 serves and whose address the control plane carries. The end
// is an agreement and a farewell.

#include "runtime/comm/launch.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <map>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "ckpt/base/nonce.h"
#include "ckpt/base/this_process.h"
#include "ckpt/job/job_ranks.h"
#include "runtime/comm/nccl_backend.h"
#include "runtime/comm/world.h"
#include "runtime/control/console.h"
#include "runtime/control/heartbeat.h"
#include "runtime/control/launchers.h"
#include "runtime/control/mailbox.h"
#include "runtime/control/status_board.h"
#include "runtime/control/watchdog.h"

namespace cairn {
namespace {

constexpr double kLongestSilenceSeconds = 15;  // of a host that nobody mentions

bool Has(const char* variable) { return std::getenv(variable) != nullptr; }

// Inside srun, torchrun and mpirun may see the variables of both. A variable that only torchrun sets decides
// first, then those of MPI. A world of one is an error if a launcher says that it started several processes:
// each would train by itself. `mpirun -n 1` asks for a world of one, whatever launcher it runs under.
std::unique_ptr<World> JoinWorld(double timeout_seconds) {
  const bool mpirun = Has("OMPI_COMM_WORLD_SIZE"), torchrun = HasTorchrunVariables();
  if (torchrun && (Has("TORCHELASTIC_RUN_ID") || !(mpirun || Has("PMIX_RANK"))))
    return MakeStoreWorld(timeout_seconds);
  if (mpirun && std::getenv("OMPI_COMM_WORLD_SIZE") == std::string_view("1")) return MakeMpiWorld();
  const std::string why = WhyNotAlone();  // MPI_Init sets some of the variables if it finds no launcher
  std::unique_ptr<World> world = mpirun || Has("PMIX_RANK") ? MakeMpiWorld() : MakeLoneWorld();
  TORCH_CHECK(world->size() > 1 || why.empty(), why);
  return world;
}

std::string RandomKey() { return NewNonce() + NewNonce(); }

void Check(const Status& status) { TORCH_CHECK(status.ok(), status.message()); }

template <typename T>
T Take(Result<T> result) {
  Check(result.status());
  return std::move(result).value();
}

// NCCL needs a GPU for each rank, and reports only "invalid usage".
void CheckGpus(ControlPlane& plane, const std::string& uuid) {
  const std::vector<std::string> all = Take(ShareAll(plane, uuid, "GPUs"));
  for (auto gpu = all.begin(); gpu != all.end(); ++gpu)
    if (const auto other = std::find(all.begin(), gpu, *gpu); other != gpu)
      TORCH_CHECK(false, fmt::format("device cuda: {} and {} would share a GPU; start at most as many ranks "
                                     "on a host as it has GPUs",
                                     Watchdog::Name(static_cast<int>(other - all.begin())),
                                     Watchdog::Name(static_cast<int>(gpu - all.begin()))));
}

// Collective. Between the first ranks of the hosts, that is of the ranks that share a board; null on the
// others, and if there is only one host. A host that cannot take part is never heard from, which the watchdog
// says.
std::shared_ptr<Heartbeat> StartHeartbeat(ControlPlane& plane, const std::shared_ptr<StatusBoard>& board,
                                          const std::string& word, double timeout_seconds) {
  int first = 0;
  while (!board->Knows(first)) ++first;
  std::shared_ptr<Heartbeat> heartbeat;
  if (first == plane.rank()) {
    auto opened = Heartbeat::Open();
    if (opened.ok())
      heartbeat = *std::move(opened);
    else if (opened.status().kind() == StatusKind::kInvalidArgument)
      Say("this host sends no heartbeats: " + opened.status().message());
  }
  const std::vector<std::string> all =
      Take(ShareAll(plane, fmt::format("{} {}", first, heartbeat ? heartbeat->place() : ""), "heartbeats"));
  std::vector<int> first_ranks;
  std::map<int, std::string> places;
  for (const std::string& text : all) {
    const size_t space = text.find(' ');
    first_ranks.push_back(std::stoi(text.substr(0, space)));
    places.try_emplace(first_ranks.back(), text.substr(space + 1));  // the first rank comes first
  }
  if (places.size() == 1) return nullptr;
  board->SetFirstRanks(std::move(first_ranks), std::min(timeout_seconds / 2, kLongestSilenceSeconds));
  if (heartbeat) heartbeat->Begin(board, word, first, places, std::clamp(timeout_seconds / 20, 0.05, 1.0));
  return heartbeat;
}

class LoneMailbox : public Mailbox {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void Post(int, std::string) override {}
  bool Delivered() override { return true; }
  std::optional<std::string> Poll(int) override { return std::nullopt; }
  std::shared_ptr<Mailbox> Duplicate(const std::string&) override { return std::make_shared<LoneMailbox>(); }
};

class LoneWorld : public World {
 public:
  c10::intrusive_ptr<c10d::Backend> NewBackend(const std::string&, const std::vector<int>&) override {
    return {};
  }
  std::shared_ptr<Mailbox> NewMailbox(const std::string&) override { return std::make_shared<LoneMailbox>(); }
  std::function<void(int)> Aborter() const override { return {}; }
};

}  // namespace

c10::intrusive_ptr<c10d::Store> World::store() const { return {}; }

std::unique_ptr<World> MakeLoneWorld() { return std::make_unique<LoneWorld>(); }

Transport::Transport(const LaunchOptions& options)
    : timeout_seconds_(options.timeout_seconds),
      device_(options.device),
      world_(JoinWorld(timeout_seconds_)) {
  TORCH_CHECK(device_ == "cpu" || device_ == "cuda", "device '", device_, "' is neither cpu nor cuda");
  TORCH_CHECK(timeout_seconds_ > 0, "a deadline of ", timeout_seconds_, " seconds cannot be kept");
  plane_ = NewControlPlane("launch");
  if (size() > 1) StartWatchdog();
  if (device_ == "cuda") LoadNccl();
}

void Transport::StartWatchdog() {
  const std::vector<std::string> hosts = Take(ShareAll(*plane_, HostName(), "hosts"));
  const std::string key =
      Take(FromRoot(*plane_, "key of the job", []() -> Result<std::string> { return RandomKey(); }));
  Result<std::unique_ptr<StatusBoard>> opened = StatusBoard::Open(key, rank(), hosts);
  std::shared_ptr<StatusBoard> board = opened.ok() ? std::move(*opened) : StatusBoard::Private(rank(), hosts);
  const Status all_mapped = Agree(*plane_, OkStatus(), "status board");
  board->Unlink();
  Check(all_mapped);
  std::shared_ptr<Heartbeat> heartbeat = StartHeartbeat(*plane_, board, key, timeout_seconds_);
  Watchdog::Start({.rank = rank(),
                   .host = hosts[rank()],
                   .timeout_seconds = timeout_seconds_,
                   .board = std::move(board),
                   .heartbeat = std::move(heartbeat),
                   .abort = world_->Aborter()});
}

void Transport::LoadNccl() {
  nccl_ = NcclModule::Load(local_rank());
  device_ = fmt::format("cuda:{}", nccl_->device());
  if (size() == 1) return;
  CheckGpus(*plane_, nccl_->uuid());
  store_ = world_->store();
  if (store_) return;
  c10d::TCPStoreOptions options;
  options.port = 0;  // any
  options.isServer = rank() == 0;
  options.waitWorkers = false;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds_ * 1000));
  const std::string host = HostName();
  c10::intrusive_ptr<c10d::TCPStore> server;
  if (rank() == 0) server = c10::make_intrusive<c10d::TCPStore>(host, options);
  const std::string port = server ? std::to_string(server->getPort()) : "";
  const std::string address =
      Take(plane_->BroadcastFromRoot(host + " " + port, "address of NCCL's rendezvous"));
  store_ = server;
  if (store_) return;
  const size_t space = address.find(' ');
  options.port = static_cast<uint16_t>(std::stoi(address.substr(space + 1)));
  store_ = c10::make_intrusive<c10d::TCPStore>(address.substr(0, space), options);
}

// The agreement has a deadline for all; the farewell keeps the root, which may serve the store, until all
// have agreed.
Transport::~Transport() {
  if (size() == 1 || std::uncaught_exceptions() > 0) return;
  Status left = Agree(*plane_, OkStatus(), "end of the run");
  if (left.ok()) left = plane_->GatherToRoot("", "farewell").status();
  if (!left.ok()) {
    Say(fmt::format("{}: {}; stopping all ranks", Watchdog::Name(rank()), left.message()));
    Watchdog::StopAllRanks();
  }
  Watchdog::Stop();
}

int Transport::rank() const { return world_->rank(); }
int Transport::size() const { return world_->size(); }
int Transport::local_rank() const { return world_->local_rank(); }

c10::intrusive_ptr<c10d::Backend> Transport::NewBackend(const std::string& name,
                                                        const std::vector<int>& members) {
  if (!nccl_) return world_->NewBackend(name, members);
  if (members.size() == 1) return {};
  const auto place = std::find(members.begin(), members.end(), rank()) - members.begin();
  return nccl_->NewBackend(store_, fmt::format("nccl/{}/{}", name, members.front()), static_cast<int>(place),
                           static_cast<int>(members.size()), timeout_seconds_);
}

ProcessGroup Transport::Split(const std::string& name, const std::vector<int>& world_ranks) {
  const auto place = std::find(world_ranks.begin(), world_ranks.end(), rank());
  TORCH_CHECK(place != world_ranks.end(), "rank ", rank(), " is not in its own group ", name);
  const int id = groups_++;
  const Watchdog::Scope scope(
      {.name = "create", .tensor = "communicator", .group = name, .peers = world_ranks});
  const std::string key = fmt::format("{}{}", id, name);  // distinguishes splits of one name
  auto backend = NewBackend(key, world_ranks);
  auto downward = nccl_ ? NewBackend(key + "/down", world_ranks) : backend;
  return ProcessGroup(name, id, world_ranks, static_cast<int>(place - world_ranks.begin()),
                      std::move(backend), std::move(downward));
}

std::unique_ptr<ControlPlane> Transport::NewControlPlane(const std::string& name) {
  return std::make_unique<ControlPlane>(world_->NewMailbox(name), timeout_seconds_);
}

}  // namespace cairn
