// Published runs on which the planner is not fitted, as recalled from arXiv 2104.04473 (table 1; seconds by
// its own formula from the TFLOPs) and 2205.05198 (table 5). Micro-batches that the papers leave out are
// assumed.
#pragma once

#include <string_view>

namespace cairn {

inline constexpr std::string_view kKeptBackRuns =
    R"csv(gpu,gpus,hidden,layers,heads,seq,vocab,tp,pp,mbs,gbs,zero,precision,recompute,sequence_parallel,sec_per_it,tflops,note,table
a100-80,64,3072,30,32,2048,51200,2,1,16,512,0,fp16,full,0,3.70,138,3.6B; micro-batch assumed,"Megatron-LM on Selene, 2104.04473 table 1"
a100-80,256,6144,40,48,2048,51200,8,1,4,1024,0,fp16,full,0,9.40,135,18.4B; micro-batch assumed,"Megatron-LM on Selene, 2104.04473 table 1"
a100-80,1024,10240,60,80,2048,51200,8,4,2,1792,0,fp16,full,0,16.06,140,76.1B; micro-batch assumed,"Megatron-LM on Selene, 2104.04473 table 1"
a100-80,1920,16384,96,128,2048,51200,8,16,1,2160,0,fp16,full,0,37.61,155,310.1B; micro-batch assumed,"Megatron-LM on Selene, 2104.04473 table 1"
a100-80,3072,25600,128,160,2048,51200,8,64,1,3072,0,fp16,full,0,102.63,163,1008B; micro-batch assumed,"Megatron-LM on Selene, 2104.04473 table 1"
a100-80,8,6144,48,64,2048,51200,8,1,4,4,0,fp16,full,0,1.42,,22B,"Megatron-LM on Selene, 2205.05198 table 5"
a100-80,8,6144,48,64,2048,51200,8,1,4,4,0,fp16,selective,1,1.1,,22B,"Megatron-LM on Selene, 2205.05198 table 5"
a100-80,280,20480,105,128,2048,51200,8,35,1,280,0,fp16,full,0,49.05,,530B,"Megatron-LM on Selene, 2205.05198 table 5"
a100-80,280,20480,105,128,2048,51200,8,35,1,280,0,fp16,selective,1,37.83,,530B,"Megatron-LM on Selene, 2205.05198 table 5"
a100-80,512,25600,128,160,2048,51200,8,64,1,512,0,fp16,full,0,94.42,,1T,"Megatron-LM on Selene, 2205.05198 table 5"
a100-80,512,25600,128,160,2048,51200,8,64,1,512,0,fp16,selective,1,71.49,,1T,"Megatron-LM on Selene, 2205.05198 table 5"
)csv";

}  // namespace cairn
