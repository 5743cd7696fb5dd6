// SPDX-License-Identifier: Apache-2.0
#include "trainer/profile/gpu_specs.h"

#include "absl/strings/str_join.h"

namespace capstan {
namespace {

// In the units of data sheets: TFLOP/s, GB/s, GB.
constexpr GpuSpecs Row(const char* key, const char* name, double bf16,
                       double fp16, double tf32, double fp32, double bandwidth,
                       double memory, double link, double host) {
  return {key,         name,        bf16 * 1e12,     fp16 * 1e12,
          tf32 * 1e12, fp32 * 1e12, bandwidth * 1e9, memory * 1e9,
          link * 1e9,  host * 1e9};
}

// One direction: half of what data sheets call NVLink's or PCI Express's
// bandwidth. PCI Express: a x16 slot.
constexpr double kNvlink3 = 300;         // A100
constexpr double kNvlink4 = 450;         // H100, H200
constexpr double kNvlink5 = 900;         // B200
constexpr double kH100Bridge = 300;      // 600 GB/s between 2 cards
constexpr double kH200Bridge = 450;      // 900 GB/s, of 2 or 4 cards
constexpr double kChipToChip = 450;      // NVLink-C2C, 900 GB/s
constexpr double kChipToChipHalf = 225;  // a Grace CPU's, of two GPUs
constexpr double kPcie3 = 16;
constexpr double kPcie4 = 32;
constexpr double kPcie5 = 64;

}  // namespace

const std::vector<GpuSpecs>& AllGpuSpecs() {
  static const auto* const specs = new std::vector<GpuSpecs>{
      // key, name, bf16, fp16, tf32, fp32, GB/s, GB, link GB/s, host GB/s.
      // docs/roofline.md says where each row was compared.
      //
      // "NVIDIA A100 Tensor Core GPU" data sheet (1758950-r4), and for 40 GB
      // "NVIDIA A100 Tensor Core GPU Architecture" (2020), table 2.
      Row("a100-40gb", "NVIDIA A100-SXM4-40GB", 312, 312, 156, 19.5, 1555, 40,
          kNvlink3, kPcie4),
      Row("a100", "NVIDIA A100-SXM4-80GB", 312, 312, 156, 19.5, 2039, 80,
          kNvlink3, kPcie4),
      Row("a100-pcie-40gb", "NVIDIA A100-PCIE-40GB", 312, 312, 156, 19.5, 1555,
          40, kPcie4, kPcie4),
      Row("a100-pcie", "NVIDIA A100 80GB PCIe", 312, 312, 156, 19.5, 1935, 80,
          kPcie4, kPcie4),
      // "NVIDIA H100 Tensor Core GPU" data sheet (2287922 for SXM and PCIe,
      // 3002121 for SXM and NVL), "Product Specifications": half of the figures
      // with sparsity. PCIe: also product brief PB-11133 (2022).
      Row("h100", "NVIDIA H100 80GB HBM3", 989.5, 989.5, 494.5, 67, 3350, 80,
          kNvlink4, kPcie5),
      Row("h100-pcie", "NVIDIA H100 PCIe", 756.5, 756.5, 378, 51, 2000, 80,
          kPcie5, kPcie5),
      Row("h100-nvl", "NVIDIA H100 NVL", 835.5, 835.5, 417.5, 60, 3900, 94,
          kH100Bridge, kPcie5),
      // "NVIDIA GH200 Grace Hopper Superchip" data sheet (2705455).
      Row("gh200", "NVIDIA GH200 480GB", 990, 990, 494, 67, 4000, 96, kNvlink4,
          kChipToChip),
      // "NVIDIA H200 Tensor Core GPU" data sheet (3002446).
      Row("h200", "NVIDIA H200", 989.5, 989.5, 494.5, 67, 4800, 141, kNvlink4,
          kPcie5),
      Row("h200-nvl", "NVIDIA H200 NVL", 835.5, 835.5, 417.5, 60, 4800, 141,
          kH200Bridge, kPcie5),
      // "NVIDIA HGX" (B200: an eighth of HGX B200's column) and "NVIDIA DGX
      // B200" data sheet (3201210): 64 TB/s, 1,440 GB in 8 GPUs. Its host's
      // processors have PCI Express 5.
      Row("b200", "NVIDIA B200", 2250, 2250, 1125, 75, 8000, 180, kNvlink5,
          kPcie5),
      // "NVIDIA GB200 NVL72" data sheet (3384703): a 72nd of the rack.
      Row("gb200", "NVIDIA GB200", 2500, 2500, 1250, 80, 8000, 186, kNvlink5,
          kChipToChipHalf),
      // "NVIDIA A10", "NVIDIA A10G" (for AWS), "NVIDIA A30", "NVIDIA A40" data
      // sheets.
      Row("a10", "NVIDIA A10", 125, 125, 62.5, 31.2, 600, 24, kPcie4, kPcie4),
      Row("a10g", "NVIDIA A10G", 70, 70, 35, 31.5, 600, 24, kPcie4, kPcie4),
      Row("a30", "NVIDIA A30", 165, 165, 82, 10.3, 933, 24, kPcie4, kPcie4),
      Row("a40", "NVIDIA A40", 149.7, 149.7, 74.8, 37.4, 696, 48, kPcie4,
          kPcie4),
      // "NVIDIA L4", "NVIDIA L40", "NVIDIA L40S" data sheets.
      Row("l4", "NVIDIA L4", 121, 121, 60, 30.3, 300, 24, kPcie4, kPcie4),
      Row("l40", "NVIDIA L40", 181.05, 181.05, 90.5, 90.5, 864, 48, kPcie4,
          kPcie4),
      Row("l40s", "NVIDIA L40S", 362.05, 362.05, 183, 91.6, 864, 48, kPcie4,
          kPcie4),
      // "NVIDIA T4" data sheet: neither bfloat16 nor TF32.
      Row("t4", "Tesla T4", 0, 65, 0, 8.1, 320, 16, kPcie3, kPcie3),
      // "NVIDIA Ampere GA102 GPU Architecture" (2021), appendix A and B.
      Row("rtx3090", "NVIDIA GeForce RTX 3090", 71, 71, 35.6, 35.6, 936, 24,
          kPcie4, kPcie4),
      Row("a6000", "NVIDIA RTX A6000", 154.8, 154.8, 77.4, 38.7, 768, 48,
          kPcie4, kPcie4),
      // "NVIDIA Ada GPU Architecture" (2023), appendix A and B.
      Row("rtx4090", "NVIDIA GeForce RTX 4090", 165.2, 165.2, 82.6, 82.6, 1008,
          24, kPcie4, kPcie4),
      Row("6000ada", "NVIDIA RTX 6000 Ada Generation", 364.2, 364.2, 182.1,
          91.1, 960, 48, kPcie4, kPcie4),
      // "NVIDIA RTX Blackwell GPU Architecture" (2025), appendix A.
      Row("rtx5090", "NVIDIA GeForce RTX 5090", 209.5, 209.5, 104.8, 104.8,
          1792, 32, kPcie5, kPcie5),
  };
  return *specs;
}

const GpuSpecs* FindGpuSpecs(absl::string_view name_or_key) {
  for (const GpuSpecs& gpu : AllGpuSpecs()) {
    if (name_or_key == gpu.name || name_or_key == gpu.key) return &gpu;
  }
  return nullptr;
}

std::string GpuKeys() {
  return absl::StrJoin(
      AllGpuSpecs(), ", ",
      [](std::string* out, const GpuSpecs& gpu) { out->append(gpu.key); });
}

double PeakFlops(const GpuSpecs& gpu, c10::ScalarType compute, bool tf32) {
  switch (compute) {
    case c10::ScalarType::BFloat16:
      return gpu.bf16;
    case c10::ScalarType::Half:
      return gpu.fp16;
    case c10::ScalarType::Float:
      return tf32 && gpu.tf32 > 0 ? gpu.tf32 : gpu.fp32;
    default:
      return 0.0;
  }
}

}  // namespace capstan
