// Markdown tables, and job scripts: text written by people.
#include "tests/fuzz/fuzz_target.h"
#include "tools/report/config_name.h"
#include "tools/report/match_logs.h"
#include "tools/report/rewrite_table.h"

namespace cairn {

std::vector<std::string> FuzzSeeds() {
  return {
      "| GPUs | Size B | DP | PP | GAS | MBS | GBS | sec/it | TFLOPs |\n| ---: | ---: | ---: | ---: | ---: | "
      "---: | ---: | ---: | ---: |\n"
      "| 16 | 18 | 1 | 8 | 64 | 4 | 256 | 90.5 | 26.1 |\n| 16 | 18 | 1 | 4 | 128 | 6 | 768 | 262 | 27.0 |\n",
      "text\n\n|Nodes|Layers|Hidden|TP|PP|MBS|GAS|Sec/"
      "it|**TFLOPs**|Notes|\n|-|-|-|-|-|-|-|-|-|:-:|\n|4|72|14336|8|12|2|512|120.85 s|**133.4**|a \\| b|\n"
      "|4|72|14336|8|12|2|512|fail|OOM||\n|4|1.3B|1|-|\n",
      "#!/bin/bash\n#SBATCH --job-name=big\n#SBATCH -o logs/%x-%4j.out\n#SBATCH --nodes=16\nexport "
      "TP=4\nPP=\"16\"  # stages\n"
      "srun x --tensor-model-parallel-size $TP --pipeline-model-parallel-size ${PP} --hidden-size 14336 "
      "--bf16\n",
      "61B-ds-zero1-mbs-2-pp16-dp-1-gas-512.out",
  };
}

std::vector<std::string> FuzzWords() {
  return {"|",      "\\",       "\n", "---", ":", " TFLOPs ", " Sec/it ",
          " GPUs ", "1e300",    "0",  "-1",  "$", "${",       "}",
          "A=",     "#SBATCH ", "--", "%x",  "%", "*",        "99999999999999999999",
          "B",      "pp",       "-",  "."};
}

}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  RewriteOptions options;
  options.defaults.seq = 1024;
  options.defaults.vocab = 50257;
  if (const auto once = RewriteTflops(text, options); once.ok()) {
    const auto again = RewriteTflops(once->text, options);
    FuzzCheck(again.ok() && again->changed == 0 && again->text == once->text);
  }
  const JobScript script = ReadJobScript(text, "52B-pp16.slurm");
  MatchesOutput("logs/big-1234.out", script.output, script.job_name);
  MatchesOutput("logs/big-1234.out", text, "big");
  const RunConfig config = ConfigFromName(text);
  FuzzCheck(Agree(config, config));
  return 0;
}
