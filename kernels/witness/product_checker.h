// SPDX-License-Identifier: Apache-2.0
//
// Checks products of matrices by Freivalds' method (Freivalds, "Probabilistic
// machines can use less running time", 1977): with a vector r of random signs,
// c r = a (b r) but for rounding, which costs a pass over each matrix. A row of
// c with one wrong number is found whatever r is; several errors of a row
// cancel each other for one r in two at most.
//
// How far rounding may move a row's sum: an element of c is a sum of k terms,
// whose rounding errors are independent and of mean zero (Higham and Mary, "A
// New Approach to Probabilistic Rounding Error Analysis", 2019, model 2.1). If
// the terms are, too, it is off by about u |a_i| |b_j|, else, as their sums
// grow, by at most about u sqrt(k) |c_ij|; r adds up the squares along the row.
// An error below that is no more than what another order of summation does.
// What underflows is added: a row of numbers whose squares are 0 in float32 has
// a bound, too.
//
// Where a check fails the product is made again. If its bits are the same, the
// bound was too tight: nothing was wrong, unless far beyond the bound.
//
// A checker that makes all products twice finds every flip of c, however small;
// what has changed in b it still finds by the sums alone.
#ifndef CAPSTAN_KERNELS_WITNESS_PRODUCT_CHECKER_H_
#define CAPSTAN_KERNELS_WITNESS_PRODUCT_CHECKER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/context/witness.h"

namespace capstan::kernels {

// A product that came out wrong.
struct ProductFailure {
  // c [m, n] = a b, of k terms.
  int64_t m = 0, n = 0, k = 0;
  const void *a = nullptr, *b = nullptr, *c = nullptr;
  bool b_transposed = false;  // it is passed as [n, k]
  const char* type = "";      // of c: "float32"
  int64_t row = 0;            // of c, the first that was wrong
  int core = 0;               // the calling thread's, before it was computed
  std::string cores;  // that computed it: "3", or "3, 4" of several threads
  int attempts = 0;   // makings beyond those that are made anyway
  bool mended = false;
  // Whether it was found, or stayed wrong, by comparing makings; else by its
  // check.
  bool by_bits = false;
  // Whether it was added to what c was (beta), which is gone.
  bool sum_lost = false;
  // Whether c follows from b as it is now, but not as it was at the step's
  // first product with it: a weight has changed in memory.
  bool weight_changed = false;
};

class ProductChecker final : public ProductWitness {
 public:
  // Called on the thread that computes.
  using OnFailure = std::function<void(const ProductFailure&)>;
  // `twice`: makes each product twice, and compares the bits.
  explicit ProductChecker(OnFailure on_failure, bool twice = false);

  void Compute(const GemmProblem& problem,
               const std::function<void()>& compute) override;

  // Memory that doesn't change until Forget: what is known of matrices there is
  // kept.
  void Remember(const void* begin, int64_t bytes);
  // The weights have changed. What is checked from here on is so with another
  // vector r.
  void Forget();

  struct Counts {
    int64_t products = 0;
    int64_t repeated = 0;  // made again for their check, with the same bits
    int64_t failures = 0;
  };
  Counts counts() const;

  // For measurements on one thread: from now on the largest error of a row is
  // known, as a part of its bound.
  void Measure() { measures_ = true; }
  double largest_error() const { return largest_error_; }

 private:
  struct Check;
  // Makes c until two of its makings have the same bits; `failure` has how many
  // more than two it took. Returns false if no two of four have.
  static bool MakeTwice(const GemmProblem& p,
                        const std::function<void()>& compute,
                        ProductFailure* failure);
  // What is known of a weight b: b r if it is passed as it is, and if it is
  // passed transposed.
  struct Known {
    std::vector<float> sums[2];  // by Transpose::kRight
    double squares = 0.0;
  };
  using Key = std::pair<const void*, std::pair<int64_t, int64_t>>;

  bool IsRemembered(const void* data) const;
  std::shared_ptr<const Known> KnownOf(const GemmProblem& p);
  void SumB(const GemmProblem& p, bool use_known, Check* check);
  // Returns the first row that fails, or -1. `again`: of a c that was made
  // again, numbers that aren't finite are right.
  int64_t FirstWrong(const GemmProblem& p, Check* check, double slack,
                     bool again);
  // Checks c by sums. Returns whether it was right; if not, `failure` says what
  // has become of it.
  bool PassesCheck(const GemmProblem& p, const std::function<void()>& compute,
                   Check* check, ProductFailure* failure);
  // Makes c again. Returns whether it was right after all.
  bool Mend(const GemmProblem& p, const std::function<void()>& compute,
            Check* check, ProductFailure* failure);
  // For a product that is added to c. Returns whether c is right after all.
  bool JudgeSum(const GemmProblem& p, const std::function<void()>& compute,
                Check* check, ProductFailure* failure);

  const OnFailure on_failure_;
  const bool twice_;
  std::vector<std::pair<const char*, const char*>> remembered_;
  std::mutex mutex_;  // for what follows
  std::map<Key, std::shared_ptr<const Known>> known_;
  std::atomic<uint64_t> round_{0};  // of r
  std::atomic<int64_t> products_{0}, repeated_{0}, failures_{0};
  bool measures_ = false;
  double largest_error_ = 0.0;
};

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_WITNESS_PRODUCT_CHECKER_H_
