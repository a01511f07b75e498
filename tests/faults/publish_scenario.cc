#include "tests/faults/scenario.h"
#include "tools/seal/publish.h"

namespace cairn {

// Another system's tag takes the place of an earlier one.
Scenario PublishScenario(const std::string& root, bool exchanges) {
  const std::string to = JoinPath(root, "TAG"), from = JoinPath(root, "partial/TAG");
  const auto text = [](FileSystem& fs, const std::string& tag) {
    const Result<std::string> read = ReadSmallFile(fs, JoinPath(tag, "file"), 100);
    return read.ok() ? *read : std::string();
  };
  const auto publish = [=](FileSystem& fs) { return PublishDirectory(fs, from, to).status(); };
  SimDisk disk;
  if (!exchanges) disk.RefuseExchange();
  Scenario scenario{.name = fmt::format("a tag published again{}", exchanges ? "" : " without an exchange"),
                    .run_dir = root};
  if (!MakeDirs(disk, from).ok() || !MakeDirs(disk, to).ok() ||
      !WriteSmallFile(disk, JoinPath(from, "file"), "new").ok() ||
      !WriteSmallFile(disk, JoinPath(to, "file"), "old").ok())
    return scenario;
  scenario.disk = disk.Settled();
  scenario.act = [=](FileSystem& fs, const std::function<void()>& reported) {
    CAIRN_RETURN_IF_ERROR(publish(fs));
    reported();
    return OkStatus();
  };
  scenario.check = [=](FileSystem& fs, size_t reported) -> std::string {
    const std::string found = text(fs, to);
    if (found == "new" || (found == "old" && reported == 0)) return "";
    const bool waits = !fs.Stat(to).ok() && text(fs, AsidePath(from)) == "old";
    return waits && reported == 0 ? "" : fmt::format("found '{}', and nothing waits beside it", found);
  };
  scenario.clean = [](FileSystem&) { return OkStatus(); };
  scenario.redo = [=](FileSystem& fs) -> std::string {
    if (text(fs, to) == "new") return "";
    if (const Status again = publish(fs); !again.ok()) return again.message();
    return text(fs, to) == "new" ? "" : "published again, and not there";
  };
  return scenario;
}

}  // namespace cairn
