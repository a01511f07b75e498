// plan_error ROWS.csv COLUMN [--json]: how wrong the planner is on runs of A100-80 that it was not fitted on.
// Each group of COLUMN is left out of the fit in turn (cross_validation.h).
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tests/bench/cross_validation.h"
#include "tools/cli/output.h"
#include "tools/cli/text_table.h"
#include "tools/plan/csv_table.h"

namespace cairn {
namespace {

Status Run(const std::string& path, const std::string& column, bool json) {
  CAIRN_ASSIGN_OR_RETURN(const CsvTable table, ReadCsv(path));
  if (table.Column(column) < 0)
    return InvalidArgument("{}: no column '{}' to leave groups out by", path, column);
  CAIRN_ASSIGN_OR_RETURN(const Cluster cluster, FindCluster("a100-80"));
  CAIRN_ASSIGN_OR_RETURN(const RunRows runs,
                         ParseRunRows(table, true, cluster, {}, Program::kMegatronDeepSpeed));
  std::vector<std::string> groups;
  for (const CsvTable::Row& row : table.rows) groups.push_back(table.Cell(row, column));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<HeldOut> held, CrossValidate(runs.rows, groups, cluster));
  const CsvTable errors = ErrorTable(held);
  if (json) {
    PrintJson(ToJson(errors));
    return Status();
  }
  TextTable text(errors.header);
  for (const CsvTable::Row& row : errors.rows) text.Add(row.cells);
  text.Print();
  return Status();
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: plan_error ROWS.csv COLUMN [--json]\n", stderr);
    return 2;
  }
  const cairn::Status status =
      cairn::Run(argv[1], argv[2], argc > 3 && std::string_view(argv[3]) == "--json");
  if (status.ok()) return 0;
  cairn::PrintProblem(status.message());
  return 2;
}
