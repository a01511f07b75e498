#include "tools/cmd_plan.h"

#include "tools/cmd_plan_predict.h"
#include "tools/exit_code.h"

namespace cairn {

void AddPlanCommand(CLI::App& app, Verb& verb) {
  CLI::App* plan = app.add_subcommand("plan", "predict what runs of a topology take");
  plan->require_subcommand(1);
  AddPlanPredict(*plan, verb);
  plan->footer(HelpFooter("cairn plan predict rows.csv --calibrate runs.csv --format csv"));
}

}  // namespace cairn
