// A thread takes a key and value head of a sample with all query heads of its group. Forward, tile by tile of
// queries: scores = q kᵀ, softmax, output = probabilities v. Backward, for each tile of keys and each of
// queries behind it, with everything transposed, so that what is summed over lies along rows: pᵀ = exp(k qᵀ -
// log sum), dsᵀ = pᵀ (v doᵀ - delta) with delta = sum(do * output); dv += pᵀ do, dk += dsᵀ q, dq += ds k.
#include "runtime/model/tiled_attention.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ckpt/base/simd.h"
#include "runtime/model/autograd.h"
#include "runtime/model/tiles.h"
#include "runtime/model/vector_math.h"

namespace cairn {
namespace {

using at::BFloat16;
using at::Tensor;

// Rows of scores become exponentials relative to their maximum; row r sees the keys [begins[r], seen + r) of
// those from `first` on, which column 0 is; the others become 0. Of each row the logarithm of the sum, and
// the sum's inverse.
CAIRN_SIMD_CLONES void Exponentiate(const Matrix<float>& scores, int64_t first, const int64_t* begins,
                                    int64_t seen, float scale, float* log_sum, float* inverse) {
  for (int64_t row = 0; row < scores.rows; ++row) {
    float* x = scores.data + row * scores.stride;
    const int64_t begin = begins[row] - first, n = seen + row - first;
    for (int64_t i = 0; i < begin; ++i) x[i] = 0;
    float most = x[begin];
#pragma omp simd reduction(max : most)
    for (int64_t i = begin; i < n; ++i) most = std::max(most, x[i]);
    const float top = most * scale;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < n; ++i) sum += x[i] = ExpOf(x[i] * scale - top);
    for (int64_t i = n; i < scores.columns; ++i) x[i] = 0;
    log_sum[row] = top + std::log(sum);
    inverse[row] = 1 / sum;
  }
}

// Scores of keys (rows) and queries, of which `query` is the first, become probabilities, `products` (v doᵀ)
// the gradients of the scores. Key r is seen by the queries before ends[r]; on the diagonal, from its own on.
CAIRN_SIMD_CLONES void TurnIntoGradients(const Matrix<float>& scores, const Matrix<float>& products,
                                         bool diagonal, int64_t query, const int64_t* ends, float scale,
                                         const float* log_sum, const float* delta) {
  for (int64_t row = 0; row < scores.rows; ++row) {
    float *p = scores.data + row * scores.stride, *ds = products.data + row * products.stride;
    const int64_t first = diagonal ? row : 0;
    const int64_t last = std::clamp(ends[row] - query, first, scores.columns);
    for (int64_t i = 0; i < first; ++i) p[i] = ds[i] = 0;
    for (int64_t i = first; i < last; ++i) {
      p[i] = ExpOf(p[i] * scale - log_sum[i]);
      ds[i] = p[i] * (ds[i] - delta[i]) * scale;
    }
    for (int64_t i = last; i < scores.columns; ++i) p[i] = ds[i] = 0;
  }
}

// Of each row of `x` and `y`.
template <typename Word>
CAIRN_SIMD_CLONES void RowProducts(const Matrix<const Word>& x, const Matrix<const Word>& y, float* sums) {
  for (int64_t row = 0; row < x.rows; ++row) {
    const Word *a = x.data + row * x.stride, *b = y.data + row * y.stride;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < x.columns; ++i) sum += Wide(a[i]) * Wide(b[i]);
    sums[row] = sum;
  }
}

// Each row times its factor; `factors` may be null.
template <typename Word>
CAIRN_SIMD_CLONES void Store(const Matrix<const float>& from, const float* factors, Word* to,
                             int64_t stride) {
  for (int64_t row = 0; row < from.rows; ++row) {
    const float factor = factors != nullptr ? factors[row] : 1;
    for (int64_t i = 0; i < from.columns; ++i)
      Round(from.data[row * from.stride + i] * factor, to[row * stride + i]);
  }
}

// As factors of type T: in place for fp32, else a copy in `room`.
const float* AsFactor(const Matrix<float>& x, std::vector<float>& /*room*/) { return x.data; }
const BFloat16* AsFactor(const Matrix<float>& x, std::vector<BFloat16>& room) {
  room.resize(kTile * x.stride);
  Store({x.data, x.rows, x.columns, x.stride}, nullptr, Words(room.data()), x.stride);
  return room.data();
}

// [s, d] of a head of a sample.
template <typename T>
Matrix<T> HeadOf(const Tensor& x, int64_t sample, int64_t head) {
  return {x.data_ptr<std::remove_const_t<T>>() + sample * x.stride(0) + head * x.stride(2), x.size(1),
          x.size(3), x.stride(1)};
}

// [s] of [b, heads, s]
float* LogSums(const Tensor& log_sums, int64_t sample, int64_t head) {
  return log_sums.data_ptr<float>() + (sample * log_sums.size(1) + head) * log_sums.size(2);
}

// Which keys the queries of each sample see, beside causality.
class Sight {
 public:
  Sight(const Tensor& first_keys, int64_t samples, int64_t s)
      : s_(s), begins_(samples * s), ends_(samples * s) {
    if (first_keys.defined()) std::copy_n(first_keys.data_ptr<int64_t>(), samples * s, begins_.begin());
    for (int64_t sample = 0; sample < samples; ++sample)
      for (int64_t key = s - 1, end = s; key >= 0; --key) {
        ends_[sample * s + key] = end;
        if (Begins(sample)[key] == key) end = key;  // a document's first
      }
  }
  // The first key that each query sees, and the end of the queries that see each key.
  const int64_t* Begins(int64_t sample) const { return begins_.data() + sample * s_; }
  const int64_t* Ends(int64_t sample) const { return ends_.data() + sample * s_; }

 private:
  int64_t s_;
  std::vector<int64_t> begins_, ends_;
};

struct Sizes {
  explicit Sizes(const Tensor& q, const Tensor& k)
      : samples(q.size(0)),
        s(q.size(1)),
        shared_heads(k.size(2)),
        group(q.size(2) / k.size(2)),
        d(q.size(3)),
        tiles(TilesOf(s)) {}
  int64_t Rows(int64_t tile) const { return std::min(kTile, s - tile * kTile); }
  // Calls visit(sample, key-value head), on all threads.
  template <typename Visit>
  void ForEachSharedHead(const Visit& visit) const {
    at::parallel_for(0, samples * shared_heads, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) visit(i / shared_heads, i % shared_heads);
    });
  }

  int64_t samples, s, shared_heads, group, d, tiles;
};

// All tiles of a head, each packed by `pack`, at tile * kTile * d.
template <typename T, typename PackTile>
std::vector<T> PackHead(const Matrix<const T>& head, const PackTile& pack) {
  std::vector<T> packed(TilesOf(head.rows) * kTile * head.columns);
  for (int64_t row = 0; row < head.rows; row += kTile)
    pack(head.Part(row, 0, std::min(kTile, head.rows - row), head.columns),
         packed.data() + row * head.columns);
  return packed;
}
template <typename T>
std::vector<T> TurnedHead(const Matrix<const T>& head) {
  return PackHead(head, [](const Matrix<const T>& tile, T* to) { PackTurned(tile, to); });
}
template <typename T>
std::vector<T> FactorHead(const Matrix<const T>& head) {
  return PackHead(head, [](const Matrix<const T>& tile, T* to) { PackFactor(tile, to); });
}

template <typename T>
void Forward(const Tensor& q, const Tensor& k, const Tensor& v, float scale, const Sight& sight,
             const Tensor& out, const Tensor& log_sums) {
  const Sizes n(q, k);
  n.ForEachSharedHead([&](int64_t sample, int64_t shared) {
    const std::vector<T> keys = TurnedHead(HeadOf<const T>(k, sample, shared));
    const std::vector<T> values = FactorHead(HeadOf<const T>(v, sample, shared));
    const int64_t length = n.tiles * kTile;
    std::vector<float> scores(kTile * length), sum(kTile * n.d), inverse(kTile);
    std::vector<T> room;
    for (int64_t head = shared * n.group; head < (shared + 1) * n.group; ++head) {
      const auto queries = HeadOf<const T>(q, sample, head);
      const auto result = HeadOf<T>(out, sample, head);
      float* log_sum = LogSums(log_sums, sample, head);
      for (int64_t tile = 0; tile < n.tiles; ++tile) {
        const int64_t row = tile * kTile, rows = n.Rows(tile);
        const int64_t* begins = sight.Begins(sample) + row;
        const int64_t first = begins[0] / kTile, skipped = first * kTile;  // no query sees the tiles before
        for (int64_t j = first; j <= tile; ++j)
          MultiplyTile<T>(queries.Part(row, 0, rows, n.d), keys.data() + j * kTile * n.d,
                          {scores.data() + j * kTile - skipped, rows, n.Rows(j), length}, false);
        const Matrix<float> seen{scores.data(), rows, row + kTile - skipped, length};
        Exponentiate(seen, skipped, begins, row + 1, scale, log_sum + row, inverse.data());
        const T* probabilities = AsFactor(seen, room);
        for (int64_t j = first; j <= tile; ++j)
          MultiplyTile<T>({probabilities + j * kTile - skipped, rows, Padded<T>(n.Rows(j)), length},
                          values.data() + j * kTile * n.d, {sum.data(), rows, n.d, n.d}, j > first);
        Store({sum.data(), rows, n.d, n.d}, inverse.data(), Words(result.data) + row * result.stride,
              result.stride);
      }
    }
    ReleaseTiles<T>();
  });
}

template <typename T>
Matrix<const WordOf<T>> InWords(const Matrix<const T>& x) {
  return {Words(x.data), x.rows, x.columns, x.stride};
}

// Of a query head in backward: what its tiles are multiplied by.
template <typename T>
struct QueryHead {
  QueryHead(const Matrix<const T>& q, const Matrix<const T>& dout, const Matrix<const T>& out)
      : turned(TurnedHead(q)),
        factor(FactorHead(q)),
        turned_grad(TurnedHead(dout)),
        factor_grad(FactorHead(dout)),
        delta(q.rows) {
    RowProducts(InWords(dout), InWords(out), delta.data());
  }
  std::vector<T> turned, factor, turned_grad, factor_grad;
  std::vector<float> delta;
};

template <typename T>
struct TileRoom {
  std::vector<float> scores = std::vector<float>(kTile * kTile), products = scores;
  std::vector<T> narrow_scores, narrow_products, turned = std::vector<T>(kTile * kTile);
};

template <typename T>
void Backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, float scale,
              const Sight& sight, const Tensor& out, const Tensor& log_sums,
              const std::array<Tensor, 3>& grads) {
  const Sizes n(q, k);
  n.ForEachSharedHead([&](int64_t sample, int64_t shared) {
    const auto keys = HeadOf<const T>(k, sample, shared), values = HeadOf<const T>(v, sample, shared);
    const std::vector<T> key_factor = FactorHead(keys);
    const int64_t* ends = sight.Ends(sample);
    std::vector<float> dq(n.s * n.d), dk(n.s * n.d), dv(n.s * n.d);
    TileRoom<T> room;
    const auto rows_of = [&](std::vector<float>& sums, int64_t tile) {
      return Matrix<float>{sums.data() + tile * kTile * n.d, n.Rows(tile), n.d, n.d};
    };
    // What tile `i` of queries and tile `j` of keys give each other.
    const auto add_pair = [&](const QueryHead<T>& head, const float* log_sum, int64_t i, int64_t j) {
      const Matrix<float> p{room.scores.data(), n.Rows(j), n.Rows(i), kTile};
      const Matrix<float> ds{room.products.data(), n.Rows(j), n.Rows(i), kTile};
      const int64_t at = i * kTile * n.d;
      MultiplyTile<T>(keys.Part(j * kTile, 0, n.Rows(j), n.d), head.turned.data() + at, p, false);
      MultiplyTile<T>(values.Part(j * kTile, 0, n.Rows(j), n.d), head.turned_grad.data() + at, ds, false);
      TurnIntoGradients(p, ds, i == j, i * kTile, ends + j * kTile, scale, log_sum + i * kTile,
                        head.delta.data() + i * kTile);
      const T* p_factor = AsFactor(p, room.narrow_scores);
      const T* ds_factor = AsFactor(ds, room.narrow_products);
      const int64_t queries = Padded<T>(n.Rows(i));
      MultiplyTile<T>({p_factor, n.Rows(j), queries, kTile}, head.factor_grad.data() + at, rows_of(dv, j),
                      true);
      MultiplyTile<T>({ds_factor, n.Rows(j), queries, kTile}, head.factor.data() + at, rows_of(dk, j), true);
      Turn({ds_factor, n.Rows(j), n.Rows(i), kTile}, kTile, room.turned.data());
      MultiplyTile<T>({room.turned.data(), n.Rows(i), Padded<T>(n.Rows(j)), kTile},
                      key_factor.data() + j * kTile * n.d, rows_of(dq, i), true);
    };
    const auto store = [&](const std::vector<float>& sums, const Tensor& grad, int64_t head) {
      const auto to = HeadOf<T>(grad, sample, head);
      Store({sums.data(), n.s, n.d, n.d}, nullptr, Words(to.data), to.stride);
    };
    for (int64_t h = shared * n.group; h < (shared + 1) * n.group; ++h) {
      const QueryHead<T> head(HeadOf<const T>(q, sample, h), HeadOf<const T>(dout, sample, h),
                              HeadOf<const T>(out, sample, h));
      std::fill(dq.begin(), dq.end(), 0.0F);
      for (int64_t j = 0; j < n.tiles; ++j)
        for (int64_t i = j; i * kTile < ends[j * kTile + n.Rows(j) - 1]; ++i)
          add_pair(head, LogSums(log_sums, sample, h), i, j);
      store(dq, grads[0], h);
    }
    store(dk, grads[1], shared);
    store(dv, grads[2], shared);
    ReleaseTiles<T>();
  });
}

}  // namespace

bool HasTiledAttention(const Tensor& q) {
  return q.is_cpu() && q.size(3) % 2 == 0 && HasTiles(q.scalar_type());
}

Tensor CausalAttention(const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                       const Tensor& first_keys) {
  for (const Tensor& x : {q, k, v}) TORCH_CHECK(x.stride(3) == 1, "elements of a head must be dense");
  const ByHand by_hand({q, k, v});
  const bool wide = q.scalar_type() == at::kFloat;
  const Tensor out = at::empty(q.sizes(), q.options());
  const Tensor log_sums = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat));
  const auto factor = static_cast<float>(scale);
  const Sight sight(first_keys, q.size(0), q.size(1));
  (wide ? Forward<float> : Forward<BFloat16>)(q, k, v, factor, sight, out, log_sums);
  return by_hand.Finish(out, [=](const Tensor& dy) -> std::vector<Tensor> {
    const std::array<Tensor, 3> grads = {at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()),
                                         at::empty(v.sizes(), v.options())};
    (wide ? Backward<float> : Backward<BFloat16>)(dy.contiguous(), q, k, v, factor, sight, out, log_sums,
                                                  grads);
    return {grads.begin(), grads.end()};
  });
}

}  // namespace cairn
