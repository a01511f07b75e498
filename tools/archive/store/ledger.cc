// A check is kept with a stamp of the bytes that it read: sizes and times of the member's files. It counts
// only while the stamp is the same and the member was not proven again since. A database that cannot be read
// is renamed and made again, once; without a database members have no checks.

#include "tools/archive/store/ledger.h"

#include <sqlite3.h>

#include <algorithm>

#include "ckpt/base/parse_number.h"
#include "tools/archive/tar/tar_pieces.h"

namespace cairn {
namespace {

constexpr int kLedgerVersion = 2;
constexpr int kBusyMilliseconds = 10'000;  // another process is writing

// Version 1 kept the checks beside a copy of the sidecars, in `members`.
constexpr const char* kSchema = R"(
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS checks(tar TEXT PRIMARY KEY, stamp TEXT, unix_seconds INTEGER, trouble TEXT);
CREATE TABLE IF NOT EXISTS sources(path TEXT PRIMARY KEY, run TEXT, step INTEGER, bytes INTEGER, digest TEXT,
  state TEXT);
CREATE TABLE IF NOT EXISTS members(tar TEXT, scrubbed INTEGER, scrub TEXT);
INSERT OR IGNORE INTO checks SELECT tar, '', scrubbed, scrub FROM members WHERE scrubbed > 0;
DROP TABLE members;
PRAGMA user_version=2;
COMMIT;
)";

struct Finalize {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};

// One statement with its values; the first failure is kept.
class Query {
 public:
  Query(sqlite3* db, const char* sql) : db_(db) {
    sqlite3_stmt* statement = nullptr;
    result_ = sqlite3_prepare_v2(db, sql, -1, &statement, nullptr);
    statement_.reset(statement);
  }
  Query& Bind(std::string_view text) {
    return Check(sqlite3_bind_text(statement_.get(), ++bound_, text.data(), static_cast<int>(text.size()),
                                   SQLITE_TRANSIENT));
  }
  Query& Bind(int64_t value) { return Check(sqlite3_bind_int64(statement_.get(), ++bound_, value)); }
  // True if there is a row.
  bool Step() {
    if (result_ != SQLITE_OK && result_ != SQLITE_ROW) return false;
    result_ = sqlite3_step(statement_.get());
    return result_ == SQLITE_ROW;
  }
  std::string Text(int column) {
    const auto* text = sqlite3_column_text(statement_.get(), column);
    return text == nullptr ? "" : reinterpret_cast<const char*>(text);
  }
  int64_t Integer(int column) { return sqlite3_column_int64(statement_.get(), column); }
  Status status() const {
    if (result_ == SQLITE_OK || result_ == SQLITE_ROW || result_ == SQLITE_DONE) return OkStatus();
    return IoError("{}: {}", sqlite3_db_filename(db_, "main"), sqlite3_errmsg(db_));
  }

 private:
  Query& Check(int result) {
    if (result_ == SQLITE_OK) result_ = result;
    return *this;
  }
  sqlite3* db_;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  int result_ = SQLITE_OK;
  int bound_ = 0;
};

// The first value of the first row. The statement is ended before the next one changes tables.
std::string FirstText(sqlite3* db, const char* sql) {
  Query query(db, sql);
  return query.Step() ? query.Text(0) : "";
}

std::string StampOf(const Store& store, const ArchiveRecord& record) {
  std::string stamp;
  for (const std::string& path : FilesOf(store.Place(record))) {
    const Result<FileInfo> info = store.fs().Stat(path);
    stamp += info.ok() ? fmt::format("{}:{};", info->bytes, info->modified_unix_seconds) : "-;";
  }
  return stamp;
}

}  // namespace

void Ledger::Close::operator()(sqlite3* db) const { sqlite3_close(db); }

Status Ledger::Execute(const char* sql) {
  char* message = nullptr;
  if (sqlite3_exec(db_.get(), sql, nullptr, nullptr, &message) == SQLITE_OK) return OkStatus();
  const Status status = IoError("{}: {}", store_.Path(kLedgerName), message == nullptr ? "?" : message);
  sqlite3_free(message);
  return status;
}

// Checks the database, and makes or converts the tables.
Status Ledger::Prepare() {
  const std::string path = store_.Path(kLedgerName);
  sqlite3_busy_timeout(db_.get(), kBusyMilliseconds);
  CAIRN_RETURN_IF_ERROR(Execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"));
  if (FirstText(db_.get(), "PRAGMA quick_check(1)") != "ok")
    return Corrupt("{}: {}", path, sqlite3_errmsg(db_.get()));
  const int64_t found = ParseNumber<int64_t>(FirstText(db_.get(), "PRAGMA user_version"), 0).value_or(0);
  if (found == kLedgerVersion) return OkStatus();
  return found < kLedgerVersion ? Execute(kSchema) : NotSupported("{}: version {}", path, found);
}

Result<Ledger> Ledger::Open(const Store& store) {
  const std::string path = store.Path(kLedgerName);
  Status trouble;
  for (const bool first : {true, false}) {
    sqlite3* db = nullptr;
    const int result =
        sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
    Ledger ledger(store, std::unique_ptr<sqlite3, Close>(db));
    if (result != SQLITE_OK) return IoError("{}: {}", path, sqlite3_errstr(result));
    trouble = ledger.Prepare();
    if (trouble.ok()) return ledger;
    if (!first || sqlite3_errcode(db) == SQLITE_READONLY || sqlite3_errcode(db) == SQLITE_BUSY ||
        sqlite3_errcode(db) == SQLITE_CANTOPEN)
      break;
    (void)store.fs().Rename(path, path + ".damaged");  // little is lost with it, so it may be replaced
    for (const char* suffix : {"-wal", "-shm"}) (void)store.fs().RemoveFile(path + suffix);
  }
  return trouble;
}

Result<std::vector<Scrub>> Ledger::Scrubs(const std::vector<ArchiveMember>& members) {
  Query query(db_.get(), "SELECT tar, stamp, unix_seconds, trouble FROM checks");
  std::map<std::string, std::pair<std::string, Scrub>> checks;
  while (query.Step()) checks[query.Text(0)] = {query.Text(1), {query.Integer(2), query.Text(3)}};
  CAIRN_RETURN_IF_ERROR(query.status());
  std::vector<Scrub> scrubs(members.size());
  for (size_t i = 0; i < members.size(); ++i) {
    const ArchiveMember& m = members[i];
    const auto found = checks.find(m.tar);
    if (found == checks.end() || !m.record) continue;
    const auto& [stamp, scrub] = found->second;
    const bool same_bytes = stamp.empty() || stamp == StampOf(store_, *m.record);  // empty: of version 1
    if (same_bytes && scrub.unix_seconds >= m.record->verified_unix_seconds) scrubs[i] = scrub;
  }
  return scrubs;
}

Status Ledger::SetScrub(const ArchiveRecord& record, const Scrub& scrub) {
  Query query(db_.get(), "INSERT OR REPLACE INTO checks VALUES(?,?,?,?)");
  query.Bind(TarName(record)).Bind(StampOf(store_, record));
  query.Bind(scrub.unix_seconds).Bind(scrub.trouble).Step();
  return query.status();
}

Result<std::vector<SeenSource>> Ledger::Sources() {
  Query query(db_.get(), "SELECT path, run, step, bytes FROM sources ORDER BY run, step, path");
  std::vector<SeenSource> sources;
  while (query.Step())
    sources.push_back(
        {query.Text(0), query.Text(1), query.Integer(2), static_cast<uint64_t>(query.Integer(3))});
  CAIRN_RETURN_IF_ERROR(query.status());
  return sources;
}

Status Ledger::NoteSource(const SeenSource& source) {
  // The last two are for older programs.
  Query query(db_.get(), "INSERT OR REPLACE INTO sources VALUES(?,?,?,?,'','scratch only')");
  query.Bind(source.path).Bind(source.run).Bind(source.step).Bind(static_cast<int64_t>(source.bytes)).Step();
  return query.status();
}

Status Ledger::ForgetSource(const std::string& path) {
  Query query(db_.get(), "DELETE FROM sources WHERE path=?");
  query.Bind(path).Step();
  return query.status();
}

std::string StateText(FileSystem& fs, const CheckedMember& entry) {
  const ArchiveMember& m = entry.member;
  if (m.state == MemberState::kVerified && !entry.scrub.trouble.empty()) return "damaged";
  if (m.state != MemberState::kVerified || !m.record || m.record->source.empty())
    return std::string(Name(m.state));
  return fs.Stat(m.record->source).ok() ? "verified" : "scratch gone";
}

Result<std::vector<CheckedMember>> ListChecked(const Store& store) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<ArchiveMember> members, ListStore(store));
  std::vector<Scrub> scrubs(members.size());
  if (store.fs().Stat(store.Path(kLedgerName)).ok()) {
    if (Result<Ledger> ledger = Ledger::Open(store); ledger.ok()) {
      CAIRN_ASSIGN_OR_RETURN(scrubs, ledger->Scrubs(members));
    }
  }
  std::vector<CheckedMember> checked;
  for (size_t i = 0; i < members.size(); ++i)
    checked.push_back({std::move(members[i]), std::move(scrubs[i])});
  return checked;
}

Result<std::vector<ArchiveMember>> ListSound(const Store& store) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<CheckedMember> checked, ListChecked(store));
  std::vector<ArchiveMember> sound;
  for (CheckedMember& entry : checked)
    if (entry.scrub.trouble.empty()) sound.push_back(std::move(entry.member));
  return sound;
}

Result<std::optional<ArchiveRecord>> FindSound(const Store& store,
                                               const std::function<bool(const ArchiveRecord&)>& fits) {
  if (!store.IsThere()) return std::optional<ArchiveRecord>();
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ArchiveMember> members, ListSound(store));
  const auto found = std::ranges::find_if(
      members, [&](const ArchiveMember& m) { return m.state == MemberState::kVerified && fits(*m.record); });
  return found == members.end() ? std::nullopt : found->record;
}

Result<std::optional<ArchiveRecord>> FindStored(const Store& store, const ArchiveRecord& wanted) {
  return FindSound(
      store, [&](const ArchiveRecord& there) { return there.manifest_digest == wanted.manifest_digest; });
}

}  // namespace cairn
