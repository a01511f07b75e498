// One thread receives the trainer's requests. Another one does the saves, in the order of the requests, and a
// third one copies local steps to the run. Every request gets one reply. A save also sends "written" before:
// from then on its memory may be filled again, unless it has become a file of a local step. A save is written
// while the trainer still fills its memory.

#include "tools/serve/server.h"

#include <atomic>
#include <exception>
#include <future>
#include <map>
#include <memory>

#include "ckpt/base/stopwatch.h"
#include "ckpt/base/threads.h"
#include "ckpt/base/worker_pool.h"
#include "ckpt/job/peer_ranks.h"
#include "tools/serve/failure.h"
#include "tools/serve/filling.h"
#include "tools/serve/local_level.h"
#include "tools/serve/message_socket.h"
#include "tools/serve/save_plan.h"
#include "tools/serve/step_save.h"

namespace cairn {
namespace {

constexpr double kAnswerSeconds = 60;  // for a part of a file from another rank

struct SaveInput {
  std::shared_ptr<SavePlan> plan;
  SaveValues values;
  SaveOptions options;
};

// A save in progress.
struct RunningSave {
  RunningSave(FileSystem& fs, HeldRuns& runs, Origins& origins, EqualCopies& equal, SaveRequest request,
              const std::atomic<bool>& trainer_ended, std::shared_ptr<LocalLevel> on)
      : run_dir(request.run_dir),
        level(std::move(on)),
        save(fs, runs, origins, equal, std::move(request), trainer_ended, level) {}

  const std::string run_dir;
  const std::shared_ptr<LocalLevel> level;  // null: none
  bool durable = true;                      // goes to the run, not only to the nodes
  StepSave save;
  Stopwatch watch;
  Status begun;        // of rank 0
  bool waits = false;  // the training, until the step is committed
  std::atomic<double> stall_seconds = 0;
  std::shared_ptr<SaveInput> input;  // since "write"
  uint64_t end = 0;                  // of the filling
  Filling filling;
};

// The groups of a request, each with its part of the tail.
Result<std::vector<Packet>> GroupsOf(const Packet& request) {
  const nlohmann::json objects = request.head.value("objects", nlohmann::json::object());
  std::vector<Packet> groups;
  for (const auto& [name, group] : objects.items()) {
    CAIRN_ASSIGN_OR_RETURN(const std::string_view tail, TailPart(request.tail, group.at("tail")));
    groups.push_back({{{"values", group.at("values")}}, std::string(tail)});
  }
  return groups;
}

SaveOptions OptionsOf(const nlohmann::json& request) {
  const nlohmann::json said = request.value("options", nlohmann::json::object());
  return {.compress = said.value("compress", false),
          .require_space = said.value("require_space", false),
          .copies_may_differ = said.value("copies_may_differ", false),
          .retention = {.keep_last = said.value("keep_last", int64_t{0})},
          .model = said.value("model", nlohmann::json::object()),
          .state = said.value("state", nlohmann::json::object())};
}

class Server {
 public:
  Server(FileSystem& fs, UniqueFd socket, FailuresBeyond failures)
      : fs_(fs), socket_(std::move(socket)), failures_(std::move(failures)) {}

  Status Run() {
    Status heard = Caught([this] { return Hear(); });
    trainer_ended_ = true;
    const std::string why = "its training ended before its state was copied";
    for (auto& [nonce, save] : begun_) Abandon(save, why);
    for (auto& [nonce, save] : filling_) save->filling.End(Aborted("{}", why));
    {
      const std::lock_guard lock(resuming_.mutex);
      resuming_.outcome = Aborted("{}", why);
      resuming_.changed.notify_all();
    }
    (void)saves_.Finish();
    (void)copies_.Finish();
    return heard;
  }

 private:
  Status Hear() {
    while (true) {
      CAIRN_ASSIGN_OR_RETURN(std::optional<Message> message, socket_.Receive());
      if (!message) return OkStatus();
      CAIRN_ASSIGN_OR_RETURN(const auto id, IntegerAt<int64_t>(message->packet.head, "id"));
      const Status taken = Guarded([&] { return Take(id, *message); });
      if (!taken.ok()) Fail(id, taken);
    }
  }

  // A field of the wrong JSON type is the trainer's error, and the helper continues. Any other exception may
  // have left a request half taken.
  template <typename Work>
  static Status Guarded(const Work& work) {
    try {
      return work();
    } catch (const nlohmann::json::exception& error) {
      return Corrupt("{}", error.what());
    }
  }
  // No exception leaves a thread.
  template <typename Work>
  static Status Caught(const Work& work) {
    return cairn::Caught([&] { return Guarded(work); });
  }
  template <typename Work>
  static void Push(WorkerPool& pool, Work work) {
    (void)pool.Push([work = std::move(work)](size_t) {
      (void)Caught([&] { return work(), OkStatus(); });
      return OkStatus();
    });
  }

  void Reply(int64_t id, Packet ok = {}, int descriptor = -1) {
    socket_.Send({{{"id", id}, {"ok", std::move(ok.head)}}, std::move(ok.tail)}, descriptor);
  }
  void Fail(int64_t id, const Status& status) {
    Packet reply{FailureJson(status), {}};
    reply.head["id"] = id;
    socket_.Send(reply);
  }
  void Answer(int64_t id, const Status& status) { status.ok() ? Reply(id) : Fail(id, status); }

  // Errors: the request cannot be started. Otherwise it gets a reply, now or later.
  Status Take(int64_t id, Message& message) {
    const nlohmann::json& head = message.packet.head;
    const std::string what = head.value("do", "");
    if (what == "plan") return Plan(id, head);
    if (what == "freed") return Freed(id, head);
    if (what == "forget") return Forget(id, head);
    if (what == "begin") return Begin(id, head);
    if (what == "write") return Write(id, message.packet);
    if (what == "copied") return Copied(id, head);
    if (what == "abort") return Abort(id, head);
    if (what == "news") return News(id, head);
    if (what == "loaded") return Loaded(id, head);
    if (what == "listen") return Listen(id);
    if (what == "join") return Join(id, head);
    if (what == "local") return Local(id, head);
    if (what == "resume") return Resume(id, head);
    if (what == "every") return Every(id, head);
    if (what == "give_up") return GiveUp(id, head);
    if (what == "end") return End(id, head);
    return NotSupported("request \"{}\"; cairn.torch and the cairn program are of different versions", what);
  }

  Status Plan(int64_t id, const nlohmann::json& head) {
    CAIRN_ASSIGN_OR_RETURN(const auto number, IntegerAt<int64_t>(head, "plan"));
    const auto level = LevelOf(head.value("run", ""));
    const auto make = [&](uint64_t bytes) {
      return level ? level->NewMemory(bytes) : SharedMemory::Make(bytes);
    };
    CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<SavePlan> plan, SavePlan::Make(head, make));
    Reply(id, {{{"bytes", plan->memory.bytes().size()}, {"offsets", plan->offsets}}, {}},
          plan->memory.descriptor());
    plans_[number] = std::move(plan);
    return OkStatus();
  }
  // The plans among these whose memory is not a file of a local step.
  Status Freed(int64_t id, const nlohmann::json& head) {
    nlohmann::json freed = nlohmann::json::array();
    for (const auto number : head.at("plans").get<std::vector<int64_t>>())
      if (const auto plan = plans_.find(number); plan != plans_.end() && !plan->second->memory.IsHeld())
        freed.push_back(number);
    Reply(id, {{{"plans", freed}}, {}});
    return OkStatus();
  }
  std::shared_ptr<LocalLevel> LevelOf(const std::string& run_dir) {
    const std::lock_guard lock(levels_mutex_);
    const auto found = levels_.find(run_dir);
    return found == levels_.end() ? nullptr : found->second;
  }
  Status Forget(int64_t id, const nlohmann::json& head) {
    CAIRN_ASSIGN_OR_RETURN(const auto number, IntegerAt<int64_t>(head, "plan"));
    plans_.erase(number);
    Reply(id);
    return OkStatus();
  }

  Status Begin(int64_t id, const nlohmann::json& head) {
    CAIRN_ASSIGN_OR_RETURN(SaveRequest request, SaveRequest::Parse(head));
    const std::string nonce = request.nonce;
    std::shared_ptr<LocalLevel> level;
    if (head.value("local", false)) {
      level = LevelOf(request.run_dir);
      if (!level) return Corrupt("the run has no local level");
    }
    auto save = std::make_shared<RunningSave>(fs_, runs_, origins_, equal_[request.run_dir],
                                              std::move(request), trainer_ended_, std::move(level));
    save->durable = head.value("durable", true);
    save->waits = head.value("waits", false);
    begun_[nonce] = save;
    std::erase_if(running_, [](const auto& known) { return known.second.expired(); });
    running_[nonce] = save;
    Push(saves_, [this, id, save] {
      save->begun = Caught([&] { return save->save.Begin(); });
      if (const auto run = runs_.At(save->run_dir); save->level && run.ok())
        (*run)->copies.Began(clock_.Seconds());
      Answer(id, save->begun);
    });
    return OkStatus();
  }

  Status Write(int64_t id, const Packet& request) {
    const auto begun = begun_.find(request.head.at("nonce").get<std::string>());
    if (begun == begun_.end()) return Corrupt("the save was not started");
    const std::shared_ptr<RunningSave> save = begun->second;
    const auto input = std::make_shared<SaveInput>();
    CAIRN_ASSIGN_OR_RETURN(const auto number, IntegerAt<int64_t>(request.head, "plan"));
    const auto plan = plans_.find(number);
    if (plan == plans_.end()) return Corrupt("the plan of the save does not exist");
    input->plan = plan->second;
    input->options = OptionsOf(request.head);
    input->options.when = origins_.Now();
    CAIRN_ASSIGN_OR_RETURN(input->values.groups, GroupsOf(request));
    input->values.late = request.head.value("copies", false);
    save->input = input;
    save->end = EndOf(*input->plan, input->values);
    if (save->end > 0) filling_[begun->first] = save;
    begun_.erase(begun);
    Push(saves_, [this, id, save, input] {
      if (save->level) return FlushToNodes(id, save, input);
      FailUnless(id, *save, Caught([&] { return Flush(id, *save, *input); }));
    });
    return OkStatus();
  }

  // When the trainer gets the error, nothing of the save is left. Several ranks wait for each other before
  // that, and may have lost the directory, so their trainers, which tell the others, get the error first.
  void FailUnless(int64_t id, RunningSave& running, const Status& saved) {
    if (saved.ok()) return;
    const auto abandon = [&] {
      running.save.Abandon(saved);
      const auto run = runs_.At(running.run_dir);
      if (run.ok()) (*run)->record.NotSaved(running.save.step(), saved);
    };
    if (running.save.alone()) abandon();
    Fail(id, saved);
    if (!running.save.alone()) abandon();
  }

  // The step goes to the nodes, and from there to the run in parallel with the next ones. If it cannot be
  // saved on the nodes, it goes to the run directly, if it was to go there, no rank is gone, and copies do
  // not differ.
  void FlushToNodes(int64_t id, const std::shared_ptr<RunningSave>& running,
                    const std::shared_ptr<SaveInput>& input) {
    StepSave& save = running->save;
    const Status local = Caught([&]() -> Status {
      if (!running->begun.ok()) return save.Abandon(running->begun), running->begun;
      return save.SaveLocally(*input->plan, input->values, input->options,
                              [&](uint64_t end) { return running->filling.WaitFor(end); });
    });
    const double written = running->watch.Seconds();
    if (local.ok()) {
      socket_.Send({{{"id", id}, {"event", "written"}}, {}});
      if (running->durable) running->level->Use(save.step());
      std::vector<std::string> left;
      const auto add = [&](const Status& why) { left.emplace_back(why.message()); };
      if (const Status retired = running->level->Retire(save.nonce(), add); !retired.ok()) add(retired);
      if (!running->durable) return Saved(id, *running, written, written, left);
    }
    const auto says = [&](std::string_view words) {
      return local.message().find(words) != std::string_view::npos;
    };
    const bool again = running->durable && running->begun.ok() && !says(kCopiesDiffer) && !says(kHasEnded);
    if (!local.ok() && !again) return FailUnless(id, *running, local);
    Push(copies_, [this, id, running, input, local, written] {
      const Status saved = Caught([&]() -> Status {
        if (local.ok()) {
          const Status copied = running->save.CopyToRun(*input->plan, input->options);
          running->level->Release(running->save.step());
          if (copied.kind() == StatusKind::kAborted) return copied;  // another rank says it
          CAIRN_RETURN_IF_ERROR(copied.WithContext("the step is saved on the nodes, but not in the run"));
          const double durable = running->watch.Seconds();
          Saved(id, *running, written, durable, running->save.RetireSteps());
          return OkStatus();
        }
        ReportLine(
            fmt::format("the step is not saved on the nodes, but goes to the run: {}", local.message()));
        CAIRN_RETURN_IF_ERROR(running->save.BeginInRun());
        return Flush(id, *running, *input);
      });
      FailUnless(id, *running, saved);
    });
  }
  void Saved(int64_t id, const RunningSave& running, double written, double durable,
             const std::vector<std::string>& left) {
    if (const auto run = runs_.At(running.run_dir); running.durable && run.ok()) {
      (*run)->record.Saved(running.save.step(), running.waits ? durable : running.stall_seconds.load(),
                           durable);
      if (running.level)
        (*run)->copies.Copied(durable, failures_(running.run_dir, !running.level->place().group.empty()));
    }
    Reply(id, {{{"step_dir", running.save.step_dir()},
                {"written_s", written},
                {"durable_s", durable},
                {"left", left},
                {"alarm", running.save.alarm()}},
               {}});
  }

  // On rank 0: how many local saves there are for each that goes to the run; 0 if that is not known yet.
  Status Every(int64_t id, const nlohmann::json& head) {
    const auto run_dir = head.at("run").get<std::string>();
    CAIRN_ASSIGN_OR_RETURN(const auto run, runs_.At(run_dir));
    if (!LevelOf(run_dir)) return Corrupt("the run has no local level");
    const auto every = run->copies.Choose();
    Reply(id, {{{"every", every.value_or(0)}}, {}});
    return OkStatus();
  }

  // On rank 0, after all saves.
  Status GiveUp(int64_t id, const nlohmann::json& head) {
    CAIRN_ASSIGN_OR_RETURN(const auto seconds, IntegerAt<uint32_t>(head, "deadline"));
    CAIRN_ASSIGN_OR_RETURN(const auto step, IntegerAt<int64_t>(head, "local_step"));
    Push(saves_, [this, id, seconds, step, run = head.at("run").get<std::string>(),
                  why = head.at("why").get<std::string>()] {
      FinishCopies();
      Answer(id, Caught([&] {
               return runs_.GiveUpLocal(fs_, run, step, why, [=] { return std::chrono::seconds(seconds); });
             }));
    });
    return OkStatus();
  }

  // After all saves.
  Status End(int64_t id, const nlohmann::json& head) {
    Push(saves_, [this, id, how = head.at("how").get<std::string>(), why = head.value("why", "")] {
      Push(copies_, [this, id, how, why] {
        runs_.RecordEnd(how, why);
        Reply(id);
      });
    });
    return OkStatus();
  }

  Status Abort(int64_t id, const nlohmann::json& head) {
    const auto nonce = head.at("nonce").get<std::string>();
    const std::string why = head.value("error", "its training abandoned the save");
    if (const auto begun = begun_.find(nonce); begun != begun_.end()) {
      Abandon(begun->second, why);
      begun_.erase(begun);
    }
    if (const auto save = filling_.extract(nonce); save) save.mapped()->filling.End(Aborted("{}", why));
    Reply(id);
    return OkStatus();
  }
  // A save that has ended meanwhile, for example with an error, is no longer in the list.
  Status Copied(int64_t id, const nlohmann::json& head) {
    const auto save = filling_.find(head.at("nonce").get<std::string>());
    CAIRN_ASSIGN_OR_RETURN(const auto bytes, IntegerAt<uint64_t>(head, "bytes"));
    if (save != filling_.end()) {
      RunningSave& running = *save->second;
      const bool last = bytes >= running.end;
      if (last) {
        running.stall_seconds = running.watch.Seconds();
        running.input->values.copies = head.value("copies", nlohmann::json::object());
      }
      running.filling.Reach(bytes);
      if (last) filling_.erase(save);
    }
    Reply(id);
    return OkStatus();
  }
  // Nobody needs those of a save that has ended here meanwhile.
  Status News(int64_t id, const nlohmann::json& head) {
    if (const auto known = running_.find(head.at("nonce").get<std::string>()); known != running_.end())
      if (const std::shared_ptr<RunningSave> save = known->second.lock()) save->save.Hear(head);
    Reply(id);
    return OkStatus();
  }
  void Abandon(const std::shared_ptr<RunningSave>& save, const std::string& why) {
    Push(saves_, [save, why] {
      if (save->begun.ok() || save->level) save->save.Abandon(Aborted("{}", why));
    });
  }

  Status Flush(int64_t id, RunningSave& running, const SaveInput& input) {
    CAIRN_RETURN_IF_ERROR(running.begun);
    CAIRN_RETURN_IF_ERROR(
        running.save.WriteShard(*input.plan, input.values, input.options,
                                [&](uint64_t end) { return running.filling.WaitFor(end); }));
    const double written = running.watch.Seconds();
    socket_.Send({{{"id", id}, {"event", "written"}}, {}});
    CAIRN_RETURN_IF_ERROR(running.save.Finish(*input.plan, input.options));
    const double durable = running.watch.Seconds();
    const std::vector<std::string> left = running.save.RetireSteps();
    Saved(id, running, written, durable, left);
    return OkStatus();
  }

  // Short once the trainer has ended: the restarted training waits for the run and the directories.
  PeerRanks::Seconds PatienceOf(uint32_t seconds) {
    return [this, seconds] {
      return trainer_ended_ ? std::max(1.0, seconds / static_cast<double>(kShortPatience)) : seconds;
    };
  }

  // Another helper finds this one there.
  Status Listen(int64_t id) {
    peers_ = std::make_shared<PeerFiles>(fs_, kAnswerSeconds, [] {});
    CAIRN_ASSIGN_OR_RETURN(const std::string place, peers_->Listen());
    Reply(id, {{{"place", place}}, {}});
    return OkStatus();
  }
  Status Join(int64_t id, const nlohmann::json& head) {
    PeerFiles::Job job{.secret = head.at("secret").get<std::string>(),
                       .places = head.at("places").get<std::vector<std::string>>(),
                       .names = head.at("names").get<std::vector<std::string>>()};
    CAIRN_ASSIGN_OR_RETURN(job.rank, IntegerAt<int>(head, "rank"));
    CAIRN_ASSIGN_OR_RETURN(const auto seconds, IntegerAt<uint32_t>(head, "deadline"));
    const auto world = static_cast<int>(job.places.size());
    if (!peers_ || job.rank < 0 || job.rank >= world || world > kMaxWorld ||
        job.names.size() != job.places.size())
      return Corrupt("rank {} of {} joins", job.rank, world);
    peers_->Join(std::move(job), std::make_unique<PeerRanks>(*peers_, "sessions", PatienceOf(seconds)));
    Reply(id);
    return OkStatus();
  }
  // Another level of the same run ends first, with all its saves.
  Status Local(int64_t id, const nlohmann::json& head) {
    CAIRN_ASSIGN_OR_RETURN(LocalLevel::Request request, LocalLevel::Request::Parse(head));
    CAIRN_ASSIGN_OR_RETURN(const auto seconds, IntegerAt<uint32_t>(head, "deadline"));
    request.patience = PatienceOf(seconds);
    if (!peers_) return Corrupt("the ranks have not joined");
    Push(saves_, [this, id, request = std::move(request)] {
      const std::string run_dir = request.run_dir;
      const Status opened = Caught([&]() -> Status {
        FinishCopies();
        {
          const std::lock_guard lock(levels_mutex_);
          levels_.erase(run_dir);
        }
        CAIRN_ASSIGN_OR_RETURN(auto level, LocalLevel::Open(fs_, runs_, peers_, request));
        const std::string covers = level->place().covers;
        {
          const std::lock_guard lock(levels_mutex_);
          levels_[run_dir] = std::move(level);
        }
        Reply(id, {{{"covers", covers}}, {}});
        return OkStatus();
      });
      if (!opened.ok()) Fail(id, opened);
    });
    return OkStatus();
  }

  void FinishCopies() {
    std::promise<void> finished;
    Push(copies_, [&] { finished.set_value(); });
    finished.get_future().wait();
  }

  // {"run", "verify"} begins. The answer is a step to load, and the next request, with the "outcome" of that
  // ({} or a failure), gets the next answer: {"load", "elsewhere", ...}, until
  // {"resumed", "in_run"}: whether there was one, and whether the run has it.
  Status Resume(int64_t id, const nlohmann::json& head) {
    const std::lock_guard lock(resuming_.mutex);
    if (const auto outcome = head.find("outcome"); outcome != head.end()) {
      if (!resuming_.running) return Corrupt("no step was to be loaded");
      resuming_.asked = id;
      resuming_.outcome = StatusOf(*outcome);
      resuming_.changed.notify_all();
      return OkStatus();
    }
    const std::shared_ptr<LocalLevel> level = LevelOf(head.at("run").get<std::string>());
    if (!level) return Corrupt("the run has no local level");
    if (resuming_.running) return Corrupt("the job resumes already");
    resuming_.asked = id;
    resuming_.running = true;
    resuming_.outcome.reset();
    Push(saves_, [this, level, verify = head.value("verify", false)] {
      Result<std::optional<ResumeStep>> resumed = Aborted("");
      const Status status = Caught([&]() -> Status {
        const auto load = [&](const auto& directory, const auto& elsewhere) {
          return AskToLoad(*level, directory, elsewhere);
        };
        resumed = level->Resume(load, verify);
        return resumed.status();
      });
      const std::lock_guard done(resuming_.mutex);
      resuming_.running = false;
      if (status.ok())
        Reply(resuming_.asked, {{{"resumed", resumed->has_value()},
                                 {"local_step", *resumed && (*resumed)->local ? (*resumed)->step : -1},
                                 {"in_run", *resumed && (!(*resumed)->local || (*resumed)->drained)}},
                                {}});
      else
        Fail(resuming_.asked, status);
    });
    return OkStatus();
  }
  // The trainer loads the step, and says how it went.
  Status AskToLoad(LocalLevel& level, const std::string& directory,
                   const std::map<std::string, PeerFileSystem::Place>& elsewhere) {
    nlohmann::json files = nlohmann::json::object();
    for (const auto& [name, place] : elsewhere) files[name] = {place.rank, place.bytes};
    const PeerFiles::Job& job = level.peers().job();
    std::unique_lock lock(resuming_.mutex);
    if (resuming_.outcome && trainer_ended_) return *resuming_.outcome;
    resuming_.outcome.reset();
    Reply(resuming_.asked, {{{"load", directory},
                             {"elsewhere", std::move(files)},
                             {"secret", job.secret},
                             {"places", job.places},
                             {"names", job.names}},
                            {}});
    resuming_.changed.wait(lock, [&] { return resuming_.outcome.has_value(); });
    return *resuming_.outcome;
  }

  // Before the save that may come from it: both are taken in order.
  Status Loaded(int64_t id, const nlohmann::json& head) {
    CAIRN_ASSIGN_OR_RETURN(Origins::Known step, ParseOrigin(head.at("origin")));
    origins_.Read(std::move(step));
    Reply(id);
    return OkStatus();
  }

  FileSystem& fs_;
  MessageSocket socket_;
  const Stopwatch clock_;
  const FailuresBeyond failures_;
  std::map<int64_t, std::shared_ptr<SavePlan>> plans_;
  std::map<std::string, std::shared_ptr<RunningSave>> begun_;    // by nonce; not written yet
  std::map<std::string, std::shared_ptr<RunningSave>> filling_;  // their memory is not yet filled
  std::map<std::string, std::weak_ptr<RunningSave>> running_;    // all that have not ended
  std::atomic<bool> trainer_ended_ = false;
  Origins origins_;
  HeldRuns runs_;
  std::map<std::string, EqualCopies> equal_;  // by run directory
  std::shared_ptr<PeerFiles> peers_;          // null until it listens
  std::mutex levels_mutex_;
  std::map<std::string, std::shared_ptr<LocalLevel>> levels_;  // by run directory
  // A resume in progress.
  struct {
    std::mutex mutex;
    std::condition_variable changed;
    bool running = false;
    int64_t asked = 0;              // the request that waits for an answer
    std::optional<Status> outcome;  // of the load that was asked for
  } resuming_;
  // Last: their threads end before what they use, and the one that hands on to the other first.
  WorkerPool copies_{1};  // of local steps to the run
  WorkerPool saves_{1};
};

}  // namespace

Status ServeTrainer(FileSystem& fs, UniqueFd socket, FailuresBeyond failures) {
  return Server(fs, std::move(socket), std::move(failures)).Run();
}

}  // namespace cairn
