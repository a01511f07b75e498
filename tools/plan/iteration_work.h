// The work of one iteration of a topology: products, bytes and messages, each as the seconds that it takes at
// the full speed of its part of the machine.
//
// It contains none of the planner's constants. A fit tries hundreds of thousands of constants on the same
// runs; the counting, in which tiles and waves cost most, is done once a run (WorkOf), and TimeOf
// (time_model.h) is a few dozen multiplications.
#pragma once

#include "ckpt/model/shape.h"
#include "tools/plan/cluster.h"
#include "tools/plan/run_setup.h"
#include "tools/plan/stage_layers.h"

namespace cairn {

// Matrix products, with tile and wave quantization. A product of depth k takes (1 + TimeConstants::depth / k)
// times as long; the seconds divided by the depth are therefore summed, too.
struct ProductWork {
  double whole = 0, whole_over_depth = 0;  // all sides are multiples of 64
  double odd = 0, odd_over_depth = 0;      // one is not
};

// A collective or a message, on the slower of the links that it crosses.
struct TransferWork {
  double link = 0;     // seconds at the speed of the links within a node; 0: crosses none
  double network = 0;  // seconds at the speed of the node's network; 0: crosses none
};

struct AttentionWork {
  double products = 0;  // seconds of one pass at peak; of flash attention, of all passes
  double scores = 0;    // seconds in which the scores cross memory once
  double passes = 0;    // forward, backward (two) and recomputation
  bool odd = false;     // the head dimension is not a multiple of 8
  bool of_128 = false;  // the head dimension is 128
};

struct IterationWork {
  RunSetup setup;
  double cores = 0;  // that the ranks share; 0: each has a device of its own
  StageLayers layers;

  // For one layer and micro-batch, forward and backward (and recomputation). The mean if layers differ.
  ProductWork products;
  AttentionWork attention;
  double input = 0;        // seconds in which the layer's input crosses memory once, in each pass
  double whole_share = 1;  // of the part that TP does not cut, on one rank
  double cut_share = 0;    // of the part that it cuts
  double parameters = 0;   // seconds in which a byte of each parameter crosses memory
  TransferWork tensor_parallel;
  TransferWork dispatch;  // of tokens to their experts, and back
  double rounds = 0;      // of collectives that wait for each other

  // For one micro-batch.
  ProductWork head;
  double loss = 0;       // seconds of the loss's traffic
  double embedding = 0;  // as `parameters`
  TransferWork hand_over;

  // For the iteration.
  TransferWork data_parallel;
  TransferWork expert_data_parallel;
  double optimizer = 0;  // seconds of its traffic
  double offloaded = 0;  // seconds of an optimizer on the host
};

IterationWork WorkOf(const ModelShape& shape, const RunSetup& setup, const Cluster& cluster);

// The useful share of the work of all tiles of all waves of a product of (m × k) by (k × n), for the best
// tile; 0 to 1. The output is cut into tiles, and the tiles run in waves of one a streaming multiprocessor: a
// last tile that sticks out and a last wave that is half empty cost as much as full ones (tile and wave
// quantization). The library picks the best tile; so do we, from the shapes that cuBLAS has. Sides may be
// fractions of a layer (hidden / tp of an uneven cut). The tiles of `groups` such products share their waves.
double TileAndWaveEfficiency(double m, double n, int sms, double groups = 1);

}  // namespace cairn
