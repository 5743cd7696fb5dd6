// SPDX-License-Identifier: Apache-2.0
//
// ATen's operators on the stand-in device, compared with the CPU's. Started by
// run.sh; see BUILD.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

namespace capstan::standin {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

class OnStandIn : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_NE(dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL), nullptr)
        << dlerror();
    at::globalContext().lazyInitDevice(at::kCUDA);
    at::manual_seed(1);
  }
};

Tensor Gpu(const Tensor& t) { return t.to(at::kCUDA); }

// f on copies of the inputs, on the CPU and on the device, in `dtype`; results
// and inputs (which f may write) are compared.
void Compare(const Tensors& inputs, const std::function<Tensors(Tensors&)>& f,
             double tolerance = 0.0) {
  Tensors on_cpu, on_gpu;
  for (const Tensor& t : inputs) {
    on_cpu.push_back(t.clone());
    on_gpu.push_back(Gpu(t));
  }
  const Tensors expected = f(on_cpu), actual = f(on_gpu);
  on_cpu.insert(on_cpu.end(), expected.begin(), expected.end());
  on_gpu.insert(on_gpu.end(), actual.begin(), actual.end());
  for (size_t i = 0; i < on_cpu.size(); ++i) {
    const Tensor back = on_gpu[i].cpu();
    EXPECT_TRUE(on_gpu[i].is_cuda()) << i;
    ASSERT_EQ(back.sizes(), on_cpu[i].sizes()) << i;
    ASSERT_EQ(back.scalar_type(), on_cpu[i].scalar_type()) << i;
    EXPECT_EQ(on_gpu[i].strides(), on_cpu[i].strides()) << i;
    if (tolerance == 0.0) {
      EXPECT_TRUE(at::equal(back, on_cpu[i])) << i;
    } else {
      const double difference =
          back.numel() == 0
              ? 0.0
              : (back - on_cpu[i]).abs().max().to(at::kDouble).item<double>();
      EXPECT_LE(difference, tolerance) << i;
    }
  }
}

TEST_F(OnStandIn, ElementwiseReductionsAndProducts) {
  const Tensor a = at::randn({5, 7}), b = at::randn({7, 3}),
               c = at::randn({5, 3});
  Compare({a, b, c}, [](Tensors& x) -> Tensors {
    return {at::mm(x[0], x[1]),
            at::addmm(x[2], x[0], x[1], 0.5, 2.0),
            x[0].sum(),
            x[0].sum(1),
            x[0].mul(2.5).add_(x[0]),
            at::softmax(x[0], -1),
            x[0].t().contiguous(),
            at::cat({x[0], x[0]}, 1),
            x[0].gt(0.0),
            x[0].to(at::kBFloat16),
            at::linalg_vector_norm(x[0])};
  });
}

// A product in 8 bits is the CPU's float32 one; what LibTorch refuses isn't.
TEST_F(OnStandIn, ScaledProductsOfEightBits) {
  const Tensor a = at::randn({24, 32}).to(at::kFloat8_e4m3fn);
  const Tensor b = at::randn({48, 32}).to(at::kFloat8_e5m2);
  const Tensor rows = at::rand({24, 1}), columns = at::rand({1, 48});
  const Tensor one = at::full({1, 1}, 0.5);
  const auto product = [&](const Tensor& scale_a, const Tensor& scale_b) {
    return at::_scaled_mm(Gpu(a), Gpu(b).t(), Gpu(scale_a), Gpu(scale_b), {},
                          {}, at::kBFloat16);
  };
  const Tensor sums = at::mm(a.to(at::kFloat), b.to(at::kFloat).t());
  EXPECT_TRUE(
      at::equal(product(one, one).cpu(), sums.mul(0.25).to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(product(rows, columns).cpu(),
                        sums.mul(rows).mul(columns).to(at::kBFloat16)));
  EXPECT_THROW(product(rows, one), c10::Error);
  const auto plain = [&](const Tensor& x, const Tensor& y) {
    return at::_scaled_mm(x, y, Gpu(one), Gpu(one), {}, {}, at::kBFloat16);
  };
  EXPECT_THROW(plain(Gpu(a), Gpu(b).t().contiguous()), c10::Error);
  EXPECT_THROW(plain(Gpu(b), Gpu(b).t()), c10::Error);
  EXPECT_THROW(plain(Gpu(a.narrow(1, 0, 24).contiguous()),
                     Gpu(b.narrow(1, 0, 24).contiguous()).t()),
               c10::Error);
}

TEST_F(OnStandIn, InPlaceAndOut) {
  const Tensor a = at::randn({4, 6}), b = at::randn({4, 6});
  Compare({a, b}, [](Tensors& x) -> Tensors {
    x[0].add_(x[1], 0.5).clamp_(-1.0, 1.0);
    x[1].zero_();
    x[1].narrow(1, 2, 2).fill_(3.0);
    Tensor out = at::empty({0}, x[0].options());
    at::mul_out(out, x[0], x[1]);
    Tensor product = at::full({4, 4}, 1.0, x[0].options());
    at::addmm_out(product, product, x[0], x[1].t());
    x[0].masked_fill_(x[0] > 0.5, 9.0);
    return {out, product};
  });
}

TEST_F(OnStandIn, ScalarsOfTheHostAreReadAtTheCall) {
  const Tensor a = at::ones({4}, at::device(at::kCUDA));
  Tensor two = at::scalar_tensor(2.0);
  const Tensor doubled = a.mul(two);
  two.fill_(100.0);
  EXPECT_TRUE(at::equal(doubled.cpu(), at::full({4}, 2.0)));
  EXPECT_THROW(a.mul(at::ones({4})), c10::Error);
}

TEST_F(OnStandIn, ShapesThatDependOnData) {
  const Tensor a = at::randn({4, 6});
  Compare({a}, [](Tensors& x) -> Tensors {
    return {at::nonzero(x[0] > 0), at::masked_select(x[0], x[0] > 0),
            x[0].index({x[0] > 0.3}),
            std::get<0>(at::_unique2(x[0].ge(0).to(at::kLong)))};
  });
  EXPECT_EQ(Gpu(a).sum().item<float>(), a.sum().item<float>());
  EXPECT_TRUE(at::equal(Gpu(a), Gpu(a)));
}

TEST_F(OnStandIn, IndicesAndOrder) {
  const Tensor a = at::randn({9, 6}), i = at::randint(9, {5}, at::kLong);
  Compare({a, i}, [](Tensors& x) -> Tensors {
    const auto sorted = at::sort(x[0], 0);
    const auto top = at::topk(x[0], 3, 1);
    Tensor put = x[0].clone();
    put.index_put_({x[1]}, x[0].narrow(0, 0, 5));
    return {at::index_select(x[0], 0, x[1]),
            at::embedding(x[0], x[1]),
            std::get<0>(sorted),
            std::get<1>(sorted),
            std::get<0>(top),
            put,
            x[0].index({x[1]}),
            at::cumsum(x[1], 0),
            at::one_hot(x[1], 9),
            at::arange(7, x[1].options()),
            x[0].repeat_interleave(2, 0)};
  });
}

TEST_F(OnStandIn, LayerNormAndItsGradients) {
  const Tensor a = at::randn({6, 8}), w = at::randn({8}), b = at::randn({8});
  Compare({a, w, b}, [](Tensors& x) -> Tensors {
    for (Tensor& t : x) t.requires_grad_(true);
    const Tensor y = at::layer_norm(x[0], {8}, x[1], x[2]);
    y.mul(y).sum().backward();
    Tensors made = {y.detach(), x[0].grad(), x[1].grad(), x[2].grad()};
    for (Tensor& t : x) t = t.detach();
    return made;
  });
}

TEST_F(OnStandIn, ListsOfTensors) {
  Compare({at::randn({4}), at::randn({3, 2})}, [](Tensors& x) -> Tensors {
    at::_foreach_mul_(x, 2.0);
    at::_foreach_add_(x, x, 1.0);
    return at::_foreach_norm(x);
  });
}

TEST_F(OnStandIn, SixteenBitProductsAddUpInFloat32) {
  const Tensor a = at::randn({8, 64}).to(at::kBFloat16),
               b = at::randn({64, 8}).to(at::kBFloat16);
  const Tensor exact = at::mm(a.to(at::kFloat), b.to(at::kFloat));
  EXPECT_TRUE(at::equal(at::mm(Gpu(a), Gpu(b)).cpu(), exact.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(at::mm(Gpu(a), Gpu(b), at::kFloat).cpu(), exact));
  Tensor sum = Gpu(at::ones({8, 8}));
  at::addmm_out(sum, sum, Gpu(a), Gpu(b), at::kFloat);
  EXPECT_TRUE(at::equal(sum.cpu(), exact + 1.0));
  EXPECT_THROW(at::mm(Gpu(exact), Gpu(exact), at::kHalf), c10::Error);
}

// Attention of the device, whichever ATen chooses, and its gradients, against
// the definition in float32.
void CompareAttention(at::ScalarType dtype, bool causal, bool masked,
                      int64_t kv_heads, double tolerance) {
  const int64_t length = 24;
  Tensors x = {at::randn({2, 4, length, 16}).to(dtype),
               at::randn({2, kv_heads, length, 16}).to(dtype),
               at::randn({2, kv_heads, length, 16}).to(dtype)};
  std::optional<Tensor> mask;
  if (masked) mask = at::rand({2, 1, length, length}) > 0.3;
  if (masked) mask->diagonal(0, 2, 3).fill_(true);
  const Tensor weight = at::randn({2, 4, length, 16});
  Tensors cpu, gpu;
  for (const Tensor& t : x) {
    cpu.push_back(t.to(at::kFloat).clone().requires_grad_(true));
    gpu.push_back(Gpu(t).requires_grad_(true));
  }
  const auto attend = [&](const Tensors& t, const std::optional<Tensor>& m) {
    return at::scaled_dot_product_attention(t[0], t[1], t[2], m, 0.0, causal,
                                            std::nullopt, kv_heads != 4);
  };
  const Tensor expected = attend(cpu, mask);
  const Tensor actual =
      attend(gpu, masked ? std::optional<Tensor>(Gpu(*mask)) : std::nullopt);
  EXPECT_EQ(actual.scalar_type(), dtype);
  (expected * weight).sum().backward();
  (actual.to(at::kFloat) * Gpu(weight)).sum().backward();
  const auto near = [&](const Tensor& a, const Tensor& b) {
    const double difference =
        (a.cpu().to(at::kFloat) - b).abs().max().item<double>();
    EXPECT_LE(difference, tolerance * b.abs().max().item<double>());
  };
  near(actual.detach(), expected.detach());
  for (int i = 0; i < 3; ++i) near(gpu[i].grad(), cpu[i].grad());
}

// Three groups of rows, of which one has none.
TEST_F(OnStandIn, GroupedProducts) {
  const Tensor x = at::randn({10, 16}).to(at::kBFloat16);
  const Tensor w = at::randn({3, 24, 16}).to(at::kBFloat16);
  const Tensor dy = at::randn({10, 24}).to(at::kBFloat16);
  const std::vector<int> ends = {4, 4, 10};
  const Tensor on_gpu = Gpu(at::tensor(ends, at::kInt));
  const Tensor y = at::_grouped_mm(Gpu(x), Gpu(w).transpose(1, 2), on_gpu);
  const Tensor dw = at::_grouped_mm(Gpu(dy).t(), Gpu(x), on_gpu);
  int begin = 0;
  for (int g = 0; g < 3; begin = ends[g], ++g) {
    const Tensor rows = x.slice(0, begin, ends[g]).to(at::kFloat);
    const Tensor d = dy.slice(0, begin, ends[g]).to(at::kFloat);
    EXPECT_TRUE(
        at::equal(y.cpu().slice(0, begin, ends[g]),
                  at::mm(rows, w[g].to(at::kFloat).t()).to(at::kBFloat16)))
        << g;
    EXPECT_TRUE(
        g == 1 ? dw.cpu()[g].isnan().all().item<bool>()
               : at::equal(dw.cpu()[g], at::mm(d.t(), rows).to(at::kBFloat16)))
        << g;
  }
  // The groups' columns of dy would have to begin at multiples of 16 bytes.
  EXPECT_THROW(at::_grouped_mm(Gpu(dy.t().contiguous()), Gpu(x), on_gpu),
               c10::Error);
  // LibTorch would wait for the groups.
  EXPECT_THROW(at::_grouped_mm(Gpu(x.to(at::kFloat)),
                               Gpu(w.to(at::kFloat)).transpose(1, 2), on_gpu),
               c10::Error);
}

TEST_F(OnStandIn, Attention) {
  for (const bool causal : {false, true}) {
    SCOPED_TRACE(causal);
    CompareAttention(at::kFloat, causal, false, 4, 1e-5);
    CompareAttention(at::kBFloat16, causal, false, 4, 0.02);
    CompareAttention(at::kBFloat16, causal, false, 2, 0.02);
  }
  CompareAttention(at::kFloat, false, true, 4, 1e-5);
  CompareAttention(at::kBFloat16, false, true, 4, 0.02);
}

// Documents of 5, 1 and 6 tokens in one row, a window, and grouped heads.
TEST_F(OnStandIn, PackedFlashAttention) {
  const std::vector<int32_t> ends = {0, 5, 6, 12};
  const at::TensorOptions half = at::dtype(at::kBFloat16);
  const Tensor q = at::randn({12, 4, 8}, half), k = at::randn({12, 2, 8}, half),
               v = at::randn({12, 2, 8}, half),
               d_out = at::randn({12, 4, 8}, half);
  const Tensor cu = Gpu(at::tensor(ends, at::kInt));
  const Tensor gq = Gpu(q), gk = Gpu(k), gv = Gpu(v);
  const auto made = at::_flash_attention_forward(
      gq, gk, gv, cu, cu, 6, 6, 0.0, /*is_causal=*/true, false, std::nullopt,
      /*window_size_left=*/2);
  const auto gradients = at::_flash_attention_backward(
      Gpu(d_out), gq, gk, gv, std::get<0>(made), std::get<1>(made), cu, cu, 6,
      6, 0.0, true, std::get<2>(made), std::get<3>(made), std::nullopt, 2);
  for (size_t d = 0; d + 1 < ends.size(); ++d) {
    const int64_t begin = ends[d], length = ends[d + 1] - begin;
    const auto part = [&](const Tensor& t) {
      return t.cpu().narrow(0, begin, length).to(at::kFloat).transpose(0, 1);
    };
    const Tensor pq = part(q).clone().requires_grad_(true);
    const Tensor pk = part(k).clone().requires_grad_(true);
    const Tensor pv = part(v).clone().requires_grad_(true);
    const Tensor at_q = at::arange(length).unsqueeze(1),
                 at_k = at::arange(length).unsqueeze(0);
    const Tensor hidden = (at_k > at_q).logical_or(at_k < at_q - 2);
    const Tensor scores =
        at::matmul(pq, pk.repeat_interleave(2, 0).transpose(1, 2)) /
        std::sqrt(8.0);
    const Tensor out =
        at::matmul(at::softmax(scores.masked_fill(hidden, -INFINITY), -1),
                   pv.repeat_interleave(2, 0));
    (out * part(d_out)).sum().backward();
    const auto near = [&](const Tensor& actual, const Tensor& expected) {
      EXPECT_LE((part(actual) - expected).abs().max().item<float>(), 0.05);
    };
    near(std::get<0>(made), out.detach());
    near(std::get<0>(gradients), pq.grad());
    near(std::get<1>(gradients), pk.grad());
    near(std::get<2>(gradients), pv.grad());
  }
}

TEST_F(OnStandIn, NamesWhatItLacks) {
  const Tensor image = at::randn({1, 1, 4, 4}, at::device(at::kCUDA));
  const Tensor weight = at::randn({1, 1, 3, 3}, at::device(at::kCUDA));
  try {
    at::cudnn_convolution(image, weight, {0, 0}, {1, 1}, {1, 1}, 1, false,
                          false, false);
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("cudnn_convolution"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace capstan::standin
