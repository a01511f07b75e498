// Each row has a stamp: sizes and times of the files that it was made from. Sync compares stamps, reads only
// the sidecars whose stamp differs, and deletes rows whose files are gone. All of that is one transaction
// that excludes other writers, so a row that another process adds meanwhile is not deleted. The result of a
// check stays with a row only while the record (except its claims) and the tar are the same. A database that
// cannot be read is renamed and made again, once; without a database the lists come from the sidecars.

#include "tools/archive/store/ledger.h"

#include <sqlite3.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "tools/archive/store/bundle.h"
#include "tools/archive/tar/tar_pieces.h"

namespace cairn {
namespace {

constexpr int kLedgerVersion = 1;
constexpr int kBusyMilliseconds = 10'000;  // another process is writing

constexpr const char* kSchema = R"(
CREATE TABLE IF NOT EXISTS members(tar TEXT PRIMARY KEY, stamp TEXT, run TEXT, step INTEGER, form INTEGER,
  bytes INTEGER, state INTEGER, trouble TEXT, record TEXT, scrubbed INTEGER DEFAULT 0, scrub TEXT DEFAULT '');
CREATE TABLE IF NOT EXISTS sources(path TEXT PRIMARY KEY, run TEXT, step INTEGER, bytes INTEGER, digest TEXT,
  state TEXT);
)";

struct Finalize {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};

// One statement with its values; the first failure stays.
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

// The stamp of a row: sizes and times of tar, pieces and sidecar; for a bundle's member those of the bundle,
// after its name.
std::string StampOf(const Store& store, const std::string& tar, const std::vector<size_t>& pieces = {}) {
  std::string stamp;
  std::vector<std::string> paths{store.Path(tar), store.Sidecar(tar)};
  for (const size_t number : pieces) paths.push_back(store.Path(TarPieceName(tar, number)));
  for (const std::string& path : paths) {
    const Result<FileInfo> info = store.fs().Stat(path);
    stamp += info.ok() ? fmt::format("{}:{};", info->bytes, info->modified_unix_seconds) : "-;";
  }
  return stamp;
}

// The stamp without the sidecar's part, which is the second.
std::string WithoutSidecar(const std::string& stamp) {
  const size_t first = stamp.find(';');
  const size_t second = first == stamp.npos ? first : stamp.find(';', first + 1);
  return second == stamp.npos ? stamp : stamp.substr(0, first) + stamp.substr(second);
}

// The record without its files, which only reading the member needs.
std::string BriefRecord(ArchiveRecord record) {
  record.files.clear();
  if (record.tree) record.tree->entries.clear();
  return EncodeRecord(record);
}

}  // namespace

void Ledger::Close::operator()(sqlite3* db) const { sqlite3_close(db); }

Status Ledger::Execute(const std::string& sql) {
  char* message = nullptr;
  if (sqlite3_exec(db_.get(), sql.c_str(), nullptr, nullptr, &message) == SQLITE_OK) return OkStatus();
  const Status status = IoError("{}: {}", store_.Path(kLedgerName), message == nullptr ? "?" : message);
  sqlite3_free(message);
  return status;
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
    sqlite3_busy_timeout(db, kBusyMilliseconds);
    trouble = ledger.Execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;");
    if (trouble.ok()) {
      Query check(db, "PRAGMA quick_check(1)");
      if (!check.Step() || check.Text(0) != "ok") trouble = Corrupt("{}: {}", path, sqlite3_errmsg(db));
    }
    if (trouble.ok()) {
      Query version(db, "PRAGMA user_version");
      const int64_t found = version.Step() ? version.Integer(0) : 0;
      if (found != 0 && found != kLedgerVersion) trouble = NotSupported("{}: version {}", path, found);
    }
    if (trouble.ok())
      trouble = ledger.Execute(fmt::format("{} PRAGMA user_version={};", kSchema, kLedgerVersion));
    if (trouble.ok()) return ledger;
    if (!first || sqlite3_errcode(db) == SQLITE_READONLY || sqlite3_errcode(db) == SQLITE_BUSY ||
        sqlite3_errcode(db) == SQLITE_CANTOPEN)
      break;
    std::error_code error;  // it is a cache, so it may be replaced
    std::filesystem::rename(path, path + ".damaged", error);
    for (const char* suffix : {"-wal", "-shm"}) std::filesystem::remove(path + suffix, error);
  }
  return trouble;
}

// The result of a check holds while the bytes are the same, by the record and by the stamp without the
// sidecar's part: a new claim in the sidecar changes nothing.
Result<bool> Ledger::KeepsScrub(const ArchiveMember& m, const std::string& stamp) {
  Query query(db_.get(), "SELECT stamp, record FROM members WHERE tar=?");
  const bool known = query.Bind(m.tar).Step();
  CAIRN_RETURN_IF_ERROR(query.status());
  if (!known || !m.record) return false;
  Result<ArchiveRecord> before = DecodeRecord(query.Text(1));
  if (!before.ok()) return false;
  before->claims = m.record->claims;
  return BriefRecord(*before) == BriefRecord(*m.record) &&
         WithoutSidecar(query.Text(0)) == WithoutSidecar(stamp);
}

Status Ledger::Put(const ArchiveMember& m, const std::string& stamp) {
  CAIRN_ASSIGN_OR_RETURN(const bool keep, KeepsScrub(m, stamp));
  Query query(db_.get(),
              "INSERT INTO members(tar, stamp, run, step, form, bytes, state, trouble, record) "
              "VALUES(?,?,?,?,?,?,?,?,?) ON CONFLICT(tar) DO UPDATE SET stamp=excluded.stamp, "
              "bytes=excluded.bytes, state=excluded.state, trouble=excluded.trouble, record=excluded.record, "
              "scrubbed=CASE WHEN ? THEN members.scrubbed ELSE 0 END, "
              "scrub=CASE WHEN ? THEN members.scrub ELSE '' END");
  query.Bind(m.tar).Bind(stamp).Bind(m.run).Bind(m.step).Bind(static_cast<int64_t>(m.form));
  query.Bind(static_cast<int64_t>(m.bytes)).Bind(static_cast<int64_t>(m.state)).Bind(m.trouble);
  query.Bind(m.record ? BriefRecord(*m.record) : "");
  query.Bind(int64_t{keep}).Bind(int64_t{keep}).Step();
  return query.status();
}

Status Ledger::Sync(bool all) {
  // First, so that rows of another process are not deleted.
  CAIRN_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
  const Status status = Follow(all);
  if (status.ok()) return Execute("COMMIT");
  (void)Execute("ROLLBACK");
  return status;
}

Status Ledger::Follow(bool all) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> tars, ListTars(store_));
  CAIRN_ASSIGN_OR_RETURN(auto pieces, ListTarPieces(store_.fs(), store_.directory()));
  std::map<std::string, std::string> known;
  {
    Query stamps(db_.get(), "SELECT tar, stamp FROM members");
    while (stamps.Step()) known[stamps.Text(0)] = stamps.Text(1);
    CAIRN_RETURN_IF_ERROR(stamps.status());
  }
  // Members with tars of their own first; a copy of them in a bundle does not count (store.h).
  std::set<std::string> own;
  for (const std::string& tar : tars) {
    const std::string stamp = StampOf(store_, tar, pieces[tar]);
    const auto found = known.find(tar);
    const bool same = found != known.end() && found->second == stamp;
    if (found != known.end()) known.erase(found);
    own.insert(tar);
    if (all || !same) CAIRN_RETURN_IF_ERROR(Put(DescribeMember({store_, tar}), stamp));
  }
  CAIRN_RETURN_IF_ERROR(FollowBundles(all, own, known));
  for (const auto& [tar, stamp] : known) {
    Query gone(db_.get(), "DELETE FROM members WHERE tar=?");
    gone.Bind(tar).Step();
    CAIRN_RETURN_IF_ERROR(gone.status());
  }
  return OkStatus();
}

// Removes from `known`, tar -> stamp, the members that bundles hold.
Status Ledger::FollowBundles(bool all, const std::set<std::string>& own,
                             std::map<std::string, std::string>& known) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListBundles(store_));
  std::map<std::string, std::string> stamps;  // of each bundle
  for (const std::string& name : names) stamps[name] = fmt::format("{}|{}", name, StampOf(store_, name));
  std::map<std::string, size_t> rows;  // of each stamp
  for (const auto& [tar, stamp] : known) ++rows[stamp];
  for (const auto& [name, stamp] : stamps)
    std::erase_if(known, [&](const auto& row) { return row.second == stamp; });
  const bool gone = !known.empty();  // its own tar is gone; a bundle may hold it
  for (const auto& [name, stamp] : stamps) {
    if (!all && !gone && rows[stamp] > 0) continue;
    for (const ArchiveMember& member : DescribeBundle(store_, name)) {
      if (own.contains(member.tar)) continue;
      known.erase(member.tar);
      CAIRN_RETURN_IF_ERROR(Put(member, stamp));
    }
  }
  return OkStatus();
}

Result<std::vector<LedgerMember>> Ledger::Members() {
  Query query(db_.get(),
              "SELECT tar, run, step, form, bytes, state, trouble, record, scrubbed, scrub FROM members "
              "ORDER BY run, step, form, tar");
  std::vector<LedgerMember> members;
  while (query.Step()) {
    ArchiveMember m{.run = query.Text(1),
                    .step = query.Integer(2),
                    .form = static_cast<Form>(query.Integer(3)),
                    .tar = query.Text(0),
                    .bytes = static_cast<uint64_t>(query.Integer(4)),
                    .state = static_cast<MemberState>(query.Integer(5)),
                    .trouble = query.Text(6)};
    if (Result<ArchiveRecord> record = DecodeRecord(query.Text(7)); record.ok())
      m.record = std::move(record).value();
    members.push_back({std::move(m), {query.Integer(8), query.Text(9)}});
  }
  CAIRN_RETURN_IF_ERROR(query.status());
  return members;
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

Status Ledger::SetScrub(const std::string& tar, const Scrub& scrub) {
  Query query(db_.get(), "UPDATE members SET scrubbed=?, scrub=? WHERE tar=?");
  query.Bind(scrub.unix_seconds).Bind(scrub.trouble).Bind(tar).Step();
  return query.status();
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

std::string StateText(FileSystem& fs, const LedgerMember& entry) {
  const ArchiveMember& m = entry.member;
  if (m.state == MemberState::kVerified && !entry.scrub.trouble.empty()) return "damaged";
  if (m.state != MemberState::kVerified || !m.record || m.record->source.empty())
    return std::string(Name(m.state));
  return fs.Stat(m.record->source).ok() ? "verified" : "scratch gone";
}

Result<std::vector<ArchiveMember>> ListSound(const Store& store) {
  CAIRN_ASSIGN_OR_RETURN(std::vector<ArchiveMember> members, ListStore(store));
  if (!store.fs().Stat(store.Path(kLedgerName)).ok()) return members;
  Result<Ledger> ledger = Ledger::Open(store);
  if (!ledger.ok()) return members;
  (void)ledger->Sync();  // forgets results of members that were stored again since
  CAIRN_ASSIGN_OR_RETURN(const std::vector<LedgerMember> known, ledger->Members());
  std::map<std::string_view, int64_t> damaged;  // tar -> when that was seen
  for (const LedgerMember& entry : known)
    if (!entry.scrub.trouble.empty()) damaged[entry.member.tar] = entry.scrub.unix_seconds;
  std::erase_if(members, [&](const ArchiveMember& member) {
    const auto seen = damaged.find(member.tar);
    return seen != damaged.end() && member.record && seen->second >= member.record->verified_unix_seconds;
  });
  return members;
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

Result<std::vector<LedgerMember>> ListByLedger(const Store& store, bool rebuild) {
  CAIRN_RETURN_IF_ERROR(store.List().status());
  Result<Ledger> ledger = Ledger::Open(store);
  if (ledger.ok() && ledger->Sync(rebuild).ok()) return ledger->Members();
  CAIRN_ASSIGN_OR_RETURN(std::vector<ArchiveMember> members, ListStore(store));
  std::vector<LedgerMember> list;
  for (ArchiveMember& member : members) list.push_back({std::move(member), {}});
  return list;
}

}  // namespace cairn
