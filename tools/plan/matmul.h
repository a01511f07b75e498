// How well one matrix product fills a GPU.
//
// A product of (m × k) by (k × n) is cut into tiles of the output, and the tiles run in waves of one a
// streaming multiprocessor: a last tile that sticks out and a last wave that is half empty cost as much as
// full ones (tile and wave quantization). The library picks the best tile; so do we, from the shapes that
// cuBLAS has.
#pragma once

namespace cairn {

// Useful share of the work of all tiles of all waves, for the best tile; 0 to 1. Sides may be
// fractions of a layer (hidden / tp of an uneven cut).
double TileAndWaveEfficiency(double m, double n, int sms);

}  // namespace cairn
