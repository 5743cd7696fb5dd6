// SPDX-License-Identifier: Apache-2.0
#include "kernels/witness/product_checker.h"

#include <ATen/Parallel.h>
#include <c10/util/Half.h>
#include <sched.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <thread>

#include "kernels/gemm/gemm.h"
#include "kernels/witness/chunk_sums.h"
#include "kernels/witness/product_rows.h"
#include "kernels/witness/sums.h"

namespace capstan::kernels {
namespace {

// The fewest numbers worth waking a thread.
constexpr int64_t kGrain = int64_t{1} << 16;
// Beyond what slack even a product that comes out the same is wrong.
constexpr double kFarSlack = 64.0;
// Of the largest sums, which blocks of terms bound.
constexpr double kMostTerms = 512.0;
constexpr double kUnit = 0x1p-24;

double LargestOf(NumberType type) {
  return type == NumberType::kFp16 ? 65504.0 : FLT_MAX;
}

const char* NameOf(NumberType type) {
  switch (type) {
    case NumberType::kFloat:
      return "float32";
    case NumberType::kBf16:
      return "bfloat16";
    case NumberType::kFp16:
      return "float16";
  }
  return "";
}

ConstMatrix From(ConstMatrix x, int64_t row) {
  x.data = static_cast<const char*>(x.data) + row * x.stride * BytesOf(x.type);
  return x;
}

ConstMatrix Const(const Matrix& c) {
  ConstMatrix x;
  x.data = c.data;
  x.stride = c.stride;
  x.type = c.type;
  return x;
}

// Rows by threads, where that is worth it. run(begin, end)
template <typename Run>
void ForRows(int64_t rows, int64_t n, const Run& run) {
  if (at::in_parallel_region() || at::get_num_threads() == 1 ||
      rows * n < 2 * kGrain) {
    return run(0, rows);
  }
  const int64_t grain =
      std::max<int64_t>(16, (kGrain / std::max<int64_t>(1, n) + 3) / 4 * 4);
  at::parallel_for(0, rows, grain, run);
}

// SumMatrix by all threads.
void Sum(const ConstMatrix& x, int64_t rows, int64_t n, MatrixSums* sums) {
  std::mutex mutex;
  ForRows(rows, n, [&](int64_t begin, int64_t end) {
    MatrixSums part = *sums;
    part.squares = 0.0;
    if (begin == 0 && end == rows) {
      SumMatrix(x, rows, n, sums);
      return;
    }
    const auto advance = [&](auto& p) {
      if (p != nullptr) p += begin;
    };
    advance(part.row_sums);
    advance(part.row_squares);
    advance(part.left);
    std::vector<float> columns, squares;
    if (part.left != nullptr) {
      columns.assign(Padded(n), 0.0f);
      part.column_sums = columns.data();
    }
    if (part.column_squares != nullptr) {
      squares.assign(Padded(n), 0.0f);
      part.column_squares = squares.data();
    }
    SumMatrix(From(x, begin), end - begin, n, &part);
    const std::lock_guard<std::mutex> lock(mutex);
    sums->squares += part.squares;
    for (size_t j = 0; j < columns.size(); ++j) {
      sums->column_sums[j] += columns[j];
    }
    for (size_t j = 0; j < squares.size(); ++j) {
      sums->column_squares[j] += squares[j];
    }
  });
}

std::string Cores(const std::set<int>& cores) {
  std::string text;
  for (const int core : cores) {
    text += (text.empty() ? "" : ", ") + std::to_string(core);
  }
  return text;
}

// What a row's error may be, as factors of the norms of the rows of a, of c and
// of what c was, and what is added: to the squares of a's row and of c's, and
// to the error itself.
struct Bound {
  double of_a, of_c, before;
  double squares_of_a, squares_of_c, more;
};

void Fit(int64_t n, std::vector<float>* floats) {
  if (floats->size() < static_cast<size_t>(n)) floats->resize(n);
}

// Those of the threads that compute here, if they aren't known.
void NameCores(ProductFailure* failure) {
  if (!failure->cores.empty()) return;
  std::set<int> cores = {failure->core};
  if (!at::in_parallel_region() && at::get_num_threads() > 1) {
    std::mutex mutex;
    at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
      const int core = sched_getcpu();
      const std::lock_guard<std::mutex> lock(mutex);
      cores.insert(core);
    });
  }
  failure->cores = Cores(cores);
}

// Runs fn on a thread of its own, and on another core, if this process may use
// one.
void OnAnotherCore(const std::function<void()>& fn) {
  const int mine = sched_getcpu();
  std::thread([&] {
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof(cores), &cores) == 0 &&
        CPU_COUNT(&cores) > 1) {
      CPU_CLR(mine, &cores);
      sched_setaffinity(0, sizeof(cores), &cores);
    }
    fn();
  }).join();
}

}  // namespace

// What a product is checked with, and with what result. Vectors are reused by
// the thread's later products.
struct ProductChecker::Check {
  std::vector<float> sums_of_b;  // b r
  double squares_of_b = 0.0;
  bool known = false;  // whether these are of the step's first product with b
  uint64_t round = 0;  // of r
  std::vector<float> wanted, squares_of_a;         // a (b r)
  std::vector<float> sums_of_c, squares_of_c;      // c r
  std::vector<float> sums_before, squares_before;  // with beta

  // What row i of c should add up to.
  double WantedOf(const GemmProblem& p, int64_t i) const {
    const double product = static_cast<double>(p.alpha) * wanted[i];
    if (p.beta == 0.0f) return product;
    return product + static_cast<double>(p.beta) * sums_before[i];
  }
  double Of(const Bound& bound, const GemmProblem& p, int64_t i) const {
    double sum = bound.of_a * std::sqrt(squares_of_a[i] + bound.squares_of_a) +
                 bound.of_c * std::sqrt(squares_of_c[i] + bound.squares_of_c) +
                 bound.more;
    if (p.beta != 0.0f) {
      sum += bound.before * std::sqrt(squares_before[i] + bound.squares_of_c);
    }
    return sum;
  }
  // At most the square of that; 0 if it isn't finite.
  double Square(const Bound& bound, const GemmProblem& p, int64_t i) const {
    double sum =
        bound.of_a * bound.of_a * (squares_of_a[i] + bound.squares_of_a) +
        bound.of_c * bound.of_c * (squares_of_c[i] + bound.squares_of_c) +
        bound.more * bound.more;
    if (p.beta != 0.0f) {
      sum += bound.before * bound.before *
             (squares_before[i] + bound.squares_of_c);
    }
    return sum <= std::numeric_limits<double>::max() ? sum : 0.0;
  }
};

ProductChecker::ProductChecker(OnFailure on_failure, bool twice)
    : on_failure_(std::move(on_failure)), twice_(twice) {}

void ProductChecker::Remember(const void* begin, int64_t bytes) {
  const char* const from = static_cast<const char*>(begin);
  remembered_.emplace_back(from, from + bytes);
}

void ProductChecker::Forget() {
  const std::lock_guard<std::mutex> lock(mutex_);
  known_.clear();
  ++round_;
}

ProductChecker::Counts ProductChecker::counts() const {
  return {products_.load(), repeated_.load(), failures_.load()};
}

bool ProductChecker::IsRemembered(const void* data) const {
  for (const auto& [begin, end] : remembered_) {
    if (data >= begin && data < end) return true;
  }
  return false;
}

// Makes both orientations' at once, since a weight that is multiplied in a
// forward is so in its backward.
std::shared_ptr<const ProductChecker::Known> ProductChecker::KnownOf(
    const GemmProblem& p) {
  const int64_t rows = p.b_transposed ? p.n : p.k;
  const int64_t columns = p.b_transposed ? p.k : p.n;
  const Key key = {p.b.data, {rows, columns}};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = known_.find(key);
    if (found != known_.end()) return found->second;
  }
  auto known = std::make_shared<Known>();
  known->sums[0].assign(Padded(rows), 0.0f);
  known->sums[1].assign(Padded(columns), 0.0f);
  MatrixSums sums;
  sums.right = RandomSigns(columns, round_);
  sums.row_sums = known->sums[0].data();
  sums.left = RandomSigns(rows, round_);
  sums.column_sums = known->sums[1].data();
  Sum(p.b, rows, columns, &sums);
  known->squares = sums.squares;
  const std::lock_guard<std::mutex> lock(mutex_);
  return known_.emplace(key, std::move(known)).first->second;
}

void ProductChecker::SumB(const GemmProblem& p, bool use_known, Check* check) {
  check->known = false;
  std::vector<float>& out = check->sums_of_b;
  if (p.source.read == nullptr && use_known && IsRemembered(p.b.data)) {
    const std::shared_ptr<const Known> known = KnownOf(p);
    out = known->sums[p.b_transposed ? 1 : 0];
    check->squares_of_b = known->squares;
    check->known = true;
    return;
  }
  const int64_t rows = p.b_transposed ? p.n : p.k;
  const int64_t columns = p.b_transposed ? p.k : p.n;
  // Read in whole vectors.
  out.assign(Padded(p.k), 0.0f);
  MatrixSums sums;
  if (p.b_transposed) {
    sums.left = RandomSigns(rows, check->round);
    sums.column_sums = out.data();
  } else {
    sums.right = RandomSigns(columns, check->round);
    sums.row_sums = out.data();
  }
  if (p.source.read == nullptr) {
    Sum(p.b, rows, columns, &sums);
    check->squares_of_b = sums.squares;
    return;
  }
  // A few rows at a time.
  const int64_t most = std::max<int64_t>(1, kGrain / columns);
  std::vector<float> values(std::min(rows, most) * columns);
  for (int64_t row = 0; row < rows; row += most) {
    const int64_t count = std::min(most, rows - row);
    p.source.read(p.source.what, row, count, 0, columns, values.data());
    MatrixSums part = sums;
    if (p.b_transposed) {
      part.left += row;
    } else {
      part.row_sums += row;
    }
    SumMatrix({values.data(), columns}, count, columns, &part);
    sums.squares = part.squares;
  }
  check->squares_of_b = sums.squares;
}

int64_t ProductChecker::FirstWrong(const GemmProblem& p, Check* check,
                                   double slack, bool again) {
  MatrixSums of_a;
  if (p.a_transposed) {
    check->wanted.assign(Padded(p.m), 0.0f);
    check->squares_of_a.assign(Padded(p.m), 0.0f);
    of_a.left = check->sums_of_b.data();
    of_a.column_sums = check->wanted.data();
    of_a.column_squares = check->squares_of_a.data();
    Sum(p.a, p.k, p.m, &of_a);
  } else {
    Fit(p.m, &check->wanted);
    Fit(p.m, &check->squares_of_a);
    of_a.right = check->sums_of_b.data();
    of_a.row_sums = check->wanted.data();
    of_a.row_squares = check->squares_of_a.data();
    Sum(p.a, p.m, p.k, &of_a);
  }
  Fit(p.m, &check->sums_of_c);
  Fit(p.m, &check->squares_of_c);
  MatrixSums of_c;
  of_c.right = RandomSigns(p.n, check->round);
  of_c.row_sums = check->sums_of_c.data();
  of_c.row_squares = check->squares_of_c.data();
  Sum(Const(p.c), p.m, p.n, &of_c);

  const double norm_of_b =
      std::sqrt(check->squares_of_b + static_cast<double>(p.n) *
                                          static_cast<double>(p.k) *
                                          kUnderflow) *
      std::abs(static_cast<double>(p.alpha));
  const double growth =
      UnitRoundoff(p.c.type) +
      kUnit * std::sqrt(std::min(static_cast<double>(p.k), kMostTerms));
  const double n = static_cast<double>(p.n), k = static_cast<double>(p.k);
  const Bound bound = {
      kDeviations * slack * kUnit * norm_of_b, kDeviations * slack * growth,
      kDeviations * slack * kUnit * std::abs(p.beta), k * kUnderflow,
      n * kUnderflow,
      // Of c's numbers, and of each of its terms.
      kDeviations * slack * std::sqrt(n) * SmallestRounding(p.c.type) +
          n * k * kUnderflow * std::abs(p.alpha)};
  for (int64_t i = 0; i < p.m; ++i) {
    const double wanted = check->WantedOf(p, i);
    const double error = check->sums_of_c[i] - wanted;
    // Nearly all rows are right by a bound that is tighter, without roots.
    if (!measures_ && error * error <= check->Square(bound, p, i)) continue;
    const double most = check->Of(bound, p, i);
    // Squares of a flipped number may overflow, too.
    const bool finite = std::isfinite(most) && std::isfinite(error);
    if (finite && std::abs(error) <= most) {
      if (measures_ && most > 0.0) {
        largest_error_ = std::max(largest_error_, std::abs(error) / most);
      }
      continue;
    }
    // Factors that overflow can't be checked.
    const bool unknown = !std::isfinite(wanted) || (again && !finite);
    if (!unknown) return i;
  }
  return -1;
}

bool ProductChecker::PassesCheck(const GemmProblem& p,
                                 const std::function<void()>& compute,
                                 Check* check, ProductFailure* failure) {
  SumB(p, /*use_known=*/true, check);
  const int64_t wrong = FirstWrong(p, check, 1.0, failure->by_bits);
  if (wrong < 0) return true;
  NameCores(failure);
  const int64_t differed = std::exchange(failure->row, wrong);
  const bool right = p.beta == 0.0f ? Mend(p, compute, check, failure)
                                    : JudgeSum(p, compute, check, failure);
  if (right) {
    repeated_.fetch_add(1, std::memory_order_relaxed);
    failure->row = differed;
  } else {
    failure->by_bits = false;
  }
  return right;
}

void ProductChecker::Compute(const GemmProblem& p,
                             const std::function<void()>& compute) {
  if (p.k <= 0) return compute();
  products_.fetch_add(1, std::memory_order_relaxed);
  thread_local Check check;
  check.round = round_;
  if (p.beta != 0.0f) {
    Fit(p.m, &check.sums_before);
    Fit(p.m, &check.squares_before);
    MatrixSums sums;
    sums.right = RandomSigns(p.n, check.round);
    sums.row_sums = check.sums_before.data();
    sums.row_squares = check.squares_before.data();
    Sum(Const(p.c), p.m, p.n, &sums);
  }
  ProductFailure failure = {p.m,      p.n,      p.k,           p.a.data,
                            p.b.data, p.c.data, p.b_transposed};
  failure.type = NameOf(p.c.type);
  failure.core = sched_getcpu();
  bool agree = true;
  if (twice_) {
    agree = MakeTwice(p, compute, &failure);
    failure.by_bits = failure.attempts > 0;
  } else {
    compute();
  }
  if (agree && PassesCheck(p, compute, &check, &failure)) {
    if (!failure.by_bits) return;
    failure.mended = true;
  }
  failures_.fetch_add(1, std::memory_order_relaxed);
  on_failure_(failure);
}

namespace {

// Of a row: its sum with r and its squares, without overflow.
struct RowSum {
  double sum = 0.0, squares = 0.0;
};

double NumberAt(const char* row, NumberType type, int64_t j) {
  if (type == NumberType::kFloat) {
    float x;
    std::memcpy(&x, row + 4 * j, 4);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, row + 2 * j, 2);
  if (type == NumberType::kFp16) {
    return c10::Half(bits, c10::Half::from_bits());
  }
  const uint32_t wide = uint32_t{bits} << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}

RowSum SumRow(const char* row, NumberType type, int64_t n, const float* signs) {
  RowSum of;
  for (int64_t j = 0; j < n; ++j) {
    const double x = NumberAt(row, type, j);
    of.sum += x * signs[j];
    of.squares += x * x;
  }
  return of;
}

// Whether a row of a sum has a number that isn't finite for no reason: that of
// the product is, and with what it was added to, of that norm, it is in the
// type's range.
bool OverflowsAlone(const char* sum, const char* product, NumberType type,
                    int64_t n, double norm_before) {
  for (int64_t j = 0; j < n; ++j) {
    if (std::isfinite(NumberAt(sum, type, j))) continue;
    if (std::abs(NumberAt(product, type, j)) + norm_before < LargestOf(type)) {
      return true;
    }
  }
  return false;
}

// Whether a row of sums isn't `product` and what c was, of that sum with r and
// those squares, which may have overflowed.
bool IsOtherSum(const GemmProblem& p, const char* sum, const char* product,
                const float* signs, double sum_before, double squares_before) {
  // Then nothing can be said.
  if (!std::isfinite(sum_before)) return false;
  const double beta = std::abs(p.beta);
  const RowSum is = SumRow(sum, p.c.type, p.n, signs);
  const RowSum of_product = SumRow(product, p.c.type, p.n, signs);
  if (!std::isfinite(of_product.sum)) return false;
  const double n = static_cast<double>(p.n);
  if (!std::isfinite(is.sum)) {
    return OverflowsAlone(sum, product, p.c.type, p.n,
                          beta * std::sqrt(squares_before + n * kUnderflow));
  }
  double before = beta * std::sqrt(squares_before + n * kUnderflow);
  const double both = std::sqrt(is.squares) + std::sqrt(of_product.squares);
  if (!std::isfinite(before)) before = both;
  // That of what c was is of float32.
  const double unit = UnitRoundoff(p.c.type) + kUnit * std::sqrt(n / kSumLanes);
  const double error =
      is.sum - of_product.sum - static_cast<double>(p.beta) * sum_before;
  return std::abs(error) >
         kDeviations * (unit * (both + before) +
                        std::sqrt(n) * 2.0 * SmallestRounding(p.c.type));
}

}  // namespace

bool ProductChecker::MakeTwice(const GemmProblem& p,
                               const std::function<void()>& compute,
                               ProductFailure* failure) {
  // Of the thread's later products, too: memory of this size is expensive.
  thread_local std::vector<char> kept[2];
  std::vector<char>&before = kept[0], &made = kept[1];
  if (p.beta != 0.0f) GetRows(p, &before);
  const auto make = [&] {
    if (p.beta != 0.0f) SetRows(p, before);
    compute();
  };
  compute();
  GetRows(p, &made);
  make();
  const int64_t differs = FirstDifference(p, made);
  if (differs < 0) return true;
  failure->row = differs;
  NameCores(failure);
  std::vector<std::vector<char>> all = {made, RowsOf(p)};
  for (const bool elsewhere : {false, true}) {
    ++failure->attempts;
    elsewhere ? OnAnotherCore(make) : make();
    for (const std::vector<char>& one : all) {
      if (FirstDifference(p, one) < 0) return true;
    }
    all.push_back(RowsOf(p));
  }
  return false;
}

bool ProductChecker::Mend(const GemmProblem& p,
                          const std::function<void()>& compute, Check* check,
                          ProductFailure* failure) {
  const std::vector<char> first = RowsOf(p);
  const auto again = [&] {
    ++failure->attempts;
    compute();
  };
  again();
  const int64_t differs = FirstDifference(p, first);
  if (differs >= 0) {
    failure->row = differs;
    failure->mended = FirstWrong(p, check, 1.0, true) < 0;
  } else if (FirstWrong(p, check, kFarSlack, true) < 0) {
    return true;
  }
  // The same again, far from what b was.
  if (!failure->mended && check->known) {
    SumB(p, /*use_known=*/false, check);
    failure->weight_changed = FirstWrong(p, check, kFarSlack, true) < 0;
  }
  if (!failure->mended && !failure->weight_changed) {
    OnAnotherCore(again);
    const bool same = FirstDifference(p, first) < 0;
    failure->mended = FirstWrong(p, check, same ? kFarSlack : 1.0, true) < 0;
  }
  return false;
}

// Makes the product alone, with c as its place: what c is then differs from
// what it was by the rounding of one addition, whatever the bound is. The
// product alone is judged as by Mend: one that comes out the same twice is
// right unless far beyond the bound.
bool ProductChecker::JudgeSum(const GemmProblem& p,
                              const std::function<void()>& compute,
                              Check* check, ProductFailure* failure) {
  const std::vector<char> sum = RowsOf(p);
  SetRows(p, std::vector<char>(sum.size()));
  ++failure->attempts;
  compute();
  const std::vector<char> product = RowsOf(p);
  const float* const signs = RandomSigns(p.n, check->round);
  int64_t wrong = -1;
  for (int64_t i = 0; i < p.m && wrong < 0; ++i) {
    const int64_t row = i * p.n * BytesOf(p.c.type);
    if (IsOtherSum(p, sum.data() + row, product.data() + row, signs,
                   check->sums_before[i], check->squares_before[i])) {
      wrong = i;
    }
  }
  if (wrong < 0) {
    GemmProblem alone = p;
    alone.beta = 0.0f;
    wrong = FirstWrong(alone, check, kFarSlack, /*again=*/true);
    if (wrong >= 0 && check->known) {
      SumB(p, /*use_known=*/false, check);
      failure->weight_changed =
          FirstWrong(alone, check, kFarSlack, /*again=*/true) < 0;
    }
  }
  SetRows(p, sum);
  if (wrong < 0) return true;
  failure->row = wrong;
  failure->sum_lost = true;
  return false;
}

}  // namespace capstan::kernels
