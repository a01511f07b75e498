#include "tools/plan/matmul.h"

#include <algorithm>
#include <cmath>

namespace cairn {
namespace {

struct Tile {
  double rows, columns;
  double speed;  // against the largest: a smaller tile reads its operands more often
};
constexpr Tile kTiles[] = {
    {256, 128, 1.0}, {128, 256, 1.0}, {128, 128, 0.92}, {128, 64, 0.8}, {64, 128, 0.8}};

}  // namespace

double TileAndWaveEfficiency(double m, double n, int sms) {
  double best = 0;
  for (const Tile& tile : kTiles) {
    const double tiles = std::ceil(m / tile.rows) * std::ceil(n / tile.columns);
    const double waves = std::ceil(tiles / sms);
    best = std::max(best, tile.speed * m * n / (waves * sms * tile.rows * tile.columns));
  }
  return best;
}

}  // namespace cairn
