// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/few_rows.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace capstan::kernels {
namespace {

std::vector<float> Random(int64_t n, unsigned seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& value : x) value = normal(bits);
  return x;
}

// A matrix of each type, and its values as floats.
struct Matrices {
  Matrices(int64_t rows, int64_t columns)
      : rows(rows), columns(columns), values(Random(rows * columns, 1)) {
    for (const float value : values) {
      bf16.emplace_back(value);
      fp16.emplace_back(value);
    }
    int8.resize(values.size());
    for (int64_t r = 0; r < rows; ++r) {
      scales.push_back(QuantizeInt8(values.data() + r * columns, columns,
                                    int8.data() + r * columns));
    }
  }

  StoredMatrix Of(MatrixType type) const {
    StoredMatrix m;
    m.type = type;
    m.rows = rows;
    m.columns = columns;
    m.data = type == MatrixType::kFloat  ? static_cast<const void*>(&values[0])
             : type == MatrixType::kBf16 ? static_cast<const void*>(&bf16[0])
             : type == MatrixType::kFp16 ? static_cast<const void*>(&fp16[0])
                                         : static_cast<const void*>(&int8[0]);
    if (type == MatrixType::kInt8) m.scales = scales.data();
    return m;
  }

  int64_t rows, columns;
  std::vector<float> values;
  std::vector<c10::BFloat16> bf16;
  std::vector<c10::Half> fp16;
  std::vector<int8_t> int8;
  std::vector<float> scales;
};

constexpr MatrixType kTypes[] = {MatrixType::kFloat, MatrixType::kBf16,
                                 MatrixType::kFp16, MatrixType::kInt8};

std::vector<float> Product(const StoredMatrix& w, const std::vector<float>& x,
                           int64_t rows, float before = 0.0f) {
  std::vector<float> y(rows * w.rows, before);
  FewRowsProduct product;
  product.w = w;
  product.y = y.data();
  product.y_stride = w.rows;
  product.add = before != 0.0f;
  FewRows(x.data(), w.columns, rows, product);
  return y;
}

// What a matrix of that type is multiplied by.
std::vector<float> Seen(MatrixType type, std::vector<float> x) {
  if (type != MatrixType::kBf16 || !RoundsToBf16()) return x;
  for (float& value : x) value = c10::BFloat16(value);
  return x;
}

TEST(FewRowsTest, ProductsOfAllTypes) {
  for (const int64_t columns : {1, 15, 64, 100, 576}) {
    const Matrices matrices(/*rows=*/13, columns);
    for (const MatrixType type : kTypes) {
      const StoredMatrix w = matrices.Of(type);
      std::vector<float> values(w.rows * columns);
      for (int64_t r = 0; r < w.rows; ++r) {
        ReadMatrix(w, r, 0, columns, values.data() + r * columns);
      }
      for (const int64_t rows : {1, 2, 5, 7, 16, 32}) {
        const std::vector<float> x = Random(rows * columns, 2);
        const std::vector<float> seen = Seen(type, x);
        for (const float before : {0.0f, 3.0f}) {
          const std::vector<float> y = Product(w, x, rows, before);
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t o = 0; o < w.rows; ++o) {
              double sum = before, size = 1.0;
              for (int64_t i = 0; i < columns; ++i) {
                const double term = static_cast<double>(seen[r * columns + i]) *
                                    values[o * columns + i];
                sum += term;
                size += std::fabs(term);
              }
              ASSERT_NEAR(y[r * w.rows + o], sum, 1e-6 * size)
                  << columns << " columns, type " << static_cast<int>(type)
                  << ", " << rows << " rows";
            }
          }
        }
      }
    }
  }
}

// A set's product of `rows` rows of x with W of any type, and its values of W.
template <typename T>
void RunSet(FewRowsKernels::Multiply<T> multiply,
            FewRowsKernels::Convert<T> read, const StoredMatrix& w,
            const std::vector<float>& x, int64_t rows, std::vector<float>* y,
            std::vector<float>* values) {
  const auto* const data = static_cast<const T*>(w.data);
  const int64_t n = w.columns;
  multiply(data, w.scales, w.rows, n, n, x.data(), n, rows, false, y->data(),
           w.rows);
  for (int64_t o = 0; o < w.rows; ++o) {
    float* const to = values->data() + o * n;
    if (read == nullptr) {
      std::memcpy(to, data + o * n, n * sizeof(float));
    } else {
      read(data + o * n, w.scales == nullptr ? 1.0f : w.scales[o], n, to);
    }
  }
}

// Against sums of the stored values in double precision, type by type.
TEST(FewRowsTest, EachSetOfEachType) {
  const FewRowsKernels* sets[3];
  const int count = kFewRowsLoops.Runnable(sets);
  const int64_t outs = 9;
  for (int s = 0; s < count; ++s) {
    for (const int64_t n : {1, 7, 16, 70, 129}) {
      const Matrices matrices(outs, n);
      for (const MatrixType type : kTypes) {
        const StoredMatrix w = matrices.Of(type);
        for (const int64_t rows : {1, 2, 5, 6}) {
          SCOPED_TRACE(::testing::Message()
                       << sets[s]->name << ", type " << static_cast<int>(type)
                       << ", " << n << " columns, " << rows << " rows");
          const std::vector<float> x = Random(rows * n, 3);
          std::vector<float> y(rows * outs), values(outs * n);
          switch (type) {
            case MatrixType::kFloat:
              RunSet<float>(sets[s]->fp32, nullptr, w, x, rows, &y, &values);
              break;
            case MatrixType::kBf16:
              RunSet<Bf16>(sets[s]->bf16, sets[s]->read_bf16, w, x, rows, &y,
                           &values);
              break;
            case MatrixType::kFp16:
              RunSet<Fp16>(sets[s]->fp16, sets[s]->read_fp16, w, x, rows, &y,
                           &values);
              break;
            case MatrixType::kInt8:
              RunSet<int8_t>(sets[s]->int8, sets[s]->read_int8, w, x, rows, &y,
                             &values);
              break;
          }
          for (int64_t i = 0; i < outs * n; ++i) {
            const double stored =
                type == MatrixType::kFloat  ? matrices.values[i]
                : type == MatrixType::kBf16 ? float{matrices.bf16[i]}
                : type == MatrixType::kFp16
                    ? float{matrices.fp16[i]}
                    : double{matrices.scales[i / n]} * matrices.int8[i];
            ASSERT_NEAR(values[i], stored, 1e-6 * std::fabs(stored));
          }
          for (int64_t i = 0; i < rows * outs; ++i) {
            double sum = 0.0, size = 1.0;
            for (int64_t c = 0; c < n; ++c) {
              const double term = static_cast<double>(x[i / outs * n + c]) *
                                  values[i % outs * n + c];
              sum += term;
              size += std::fabs(term);
            }
            ASSERT_NEAR(y[i], sum, 1e-6 * size);
          }
        }
      }
    }
  }
}

// As a product with the transpose.
TEST(FewRowsTest, WeightedSumsOfEachSet) {
  const FewRowsKernels* sets[3];
  const int count = kFewRowsLoops.Runnable(sets);
  const int64_t n = 70, terms = 9, rows = 5;
  const std::vector<float> v = Random(terms * n, 1);
  const std::vector<float> p = Random(rows * terms, 3);
  const std::vector<float> factors(rows, 2.0f);
  for (int s = 0; s < count; ++s) {
    SCOPED_TRACE(sets[s]->name);
    std::vector<float> sums(rows * n);
    sets[s]->weighted_sums(p.data(), terms, rows, terms, v.data(), n, n,
                           factors.data(), sums.data(), n);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < n; ++c) {
        double sum = 0.0;
        for (int64_t i = 0; i < terms; ++i) {
          sum += static_cast<double>(p[r * terms + i]) * v[i * n + c];
        }
        EXPECT_NEAR(sums[r * n + c], 2.0 * sum, 1e-4);
      }
    }
  }
}

#ifdef __x86_64__
TEST(FewRowsTest, PairsMakeTheSameOfRoundedRows) {
  if (!HasBf16Products()) GTEST_SKIP() << "the processor multiplies no pairs";
  const int64_t outs = 9;
  for (const int64_t n : {1, 31, 70, 576}) {
    const Matrices matrices(outs, n);
    const auto* const w = reinterpret_cast<const Bf16*>(matrices.bf16.data());
    for (const int64_t rows : {1, 2, 6, 7, 32}) {
      std::vector<float> x;
      std::vector<c10::BFloat16> halves;
      for (const float value : Random(rows * n, 3)) {
        halves.emplace_back(value);
        x.push_back(halves.back());
      }
      std::vector<float> wanted(rows * outs, 1.0f), y = wanted;
      kFewRowsLoops.best().bf16(w, nullptr, outs, n, n, x.data(), n, rows, true,
                                wanted.data(), outs);
      kFewRowsLoopsAvx512Bf16.pairs(
          w, nullptr, outs, n, n, reinterpret_cast<const Bf16*>(halves.data()),
          n, rows, true, y.data(), outs);
      for (size_t i = 0; i < y.size(); ++i) {
        EXPECT_NEAR(y[i], wanted[i], 1e-4) << n << " columns, " << rows;
      }
      // Its other loops are those without pairs.
      const std::vector<float>& w32 = matrices.values;
      kFewRowsLoops.best().fp32(w32.data(), nullptr, outs, n, n, x.data(), n,
                                rows, false, wanted.data(), outs);
      kFewRowsLoopsAvx512Bf16.fp32(w32.data(), nullptr, outs, n, n, x.data(), n,
                                   rows, false, y.data(), outs);
      EXPECT_EQ(y, wanted);
    }
  }
}
#endif

TEST(FewRowsTest, ARowIsTheSameAloneAndOnAnyThreads) {
  const Matrices matrices(/*rows=*/700, /*columns=*/200);
  const std::vector<float> x = Random(11 * 200, 4);
  const int threads = at::get_num_threads();
  for (const MatrixType type : kTypes) {
    at::set_num_threads(1);
    const std::vector<float> y = Product(matrices.Of(type), x, 11);
    for (int64_t r = 0; r < 11; ++r) {
      const std::vector<float> row(x.begin() + r * 200,
                                   x.begin() + (r + 1) * 200);
      EXPECT_EQ(
          Product(matrices.Of(type), row, 1),
          std::vector<float>(y.begin() + r * 700, y.begin() + (r + 1) * 700));
    }
    at::set_num_threads(3);
    EXPECT_EQ(Product(matrices.Of(type), x, 11), y);
  }
  at::set_num_threads(threads);
}

TEST(FewRowsTest, SeveralProductsAreOne) {
  const Matrices first(/*rows=*/300, /*columns=*/160);
  const Matrices second(/*rows=*/500, /*columns=*/160);
  const std::vector<float> x = Random(2 * 160, 5);
  std::vector<float> y(2 * 300), z(2 * 500);
  FewRowsProduct products[2];
  products[0].w = first.Of(MatrixType::kFloat);
  products[0].y = y.data();
  products[0].y_stride = 300;
  products[1].w = second.Of(MatrixType::kBf16);
  products[1].y = z.data();
  products[1].y_stride = 500;
  FewRows(x.data(), 160, 2, products, 2);
  EXPECT_EQ(y, Product(products[0].w, x, 2));
  EXPECT_EQ(z, Product(products[1].w, x, 2));
}

TEST(FewRowsTest, Int8IsHalfAScaleOffAtMost) {
  const std::vector<float> x = Random(333, 6);
  std::vector<int8_t> bytes(x.size());
  const float scale = QuantizeInt8(x.data(), 333, bytes.data());
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_LE(std::fabs(x[i] - scale * static_cast<float>(bytes[i])),
              0.5001f * scale);
  }
  const std::vector<float> zeros(5);
  EXPECT_EQ(QuantizeInt8(zeros.data(), 5, bytes.data()), 0.0f);
  EXPECT_EQ(bytes[0], 0);
  const std::vector<float> bad = {1.0f, std::numeric_limits<float>::infinity()};
  EXPECT_TRUE(std::isnan(QuantizeInt8(bad.data(), 2, bytes.data())));
  EXPECT_NE(bytes[0], 0);  // NaN times that is NaN
}

}  // namespace
}  // namespace capstan::kernels
