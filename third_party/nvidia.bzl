"""NVIDIA's wheels: what LibTorch needs on a GPU, and a compiler."""

# NVIDIA's libraries as LibTorch 2.11.0 was built with: 2 GB.
NVIDIA_WHEELS = {
    "nvidia-cublas==13.1.0.3": "ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171",
    "nvidia-cuda-nvrtc==13.0.88": "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
    "nvidia-cudnn-cu13==9.19.0.56": "d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf",
    "nvidia-cufft==12.0.0.61": "6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3",
    "nvidia-cufile==1.15.1.6": "08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44",
    "nvidia-curand==10.4.0.35": "1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc",
    "nvidia-cusolver==12.0.4.66": "0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112",
    "nvidia-cusparse==12.6.3.3": "2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b",
    "nvidia-cusparselt-cu13==0.8.0": "25e30a8a7323935d4ad0340b95a0b69926eee755767e8e0b1cf8dd85b197d3fd",
    "nvidia-nccl-cu13==2.28.9": "e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42",
    "nvidia-nvjitlink==13.0.88": "13a74f429e23b921c1109976abefacc69835f2f433ebd323d3946e11d804e47b",
    "nvidia-nvshmem-cu13==3.4.5": "290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80",
    "nvidia-nvtx==13.0.85": "4936d1d6780fbe68db454f5e72a42ff64d1fd6397df9f363ae786930fd5c1cd4",
}

NVIDIA_FILES = [
    "nvidia/*/lib/*",
    # LibTorch's headers include those of cuBLAS, cuSPARSE and cuSOLVER.
    "nvidia/cu13/include/*",
    "nvidia/nccl/include/*",
]

# nvcc with all that it calls and includes: 105 MB.
NVCC_VERSION = "13.0.88"

NVCC_WHEELS = {
    "nvidia-cuda-cccl==13.0.85": "e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649",
    "nvidia-cuda-crt==13.0.88": "2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4",
    "nvidia-cuda-nvcc==13.0.88": "56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03",
    "nvidia-cuda-runtime==13.0.96": "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
    "nvidia-nvvm==13.0.88": "c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0",
}

NVCC_FILES = [
    "nvidia/cu13/bin/*",
    "nvidia/cu13/include/*",
    "nvidia/cu13/nvvm/*",
]

# What shows machine code, for a test: 5 MB. There are no wheels of 13.0; later
# ones read its code, too.
DISASSEMBLER_WHEELS = {
    "nvidia-cuda-cuobjdump==13.5.37": "38780fee50863252a0b8926357faa91615ca1c8346490563f33a06100cd73f58",
    "nvidia-cuda-nvdisasm==13.5.37": "d3fdbdd49fa53e2e4aacd3db8259d052bd2b049ececdcb69e92e083c6728e7ca",
}

DISASSEMBLER_FILES = ["nvidia/cu13/bin/*"]

# compute-sanitizer: 18 MB. Wheels before 13.4 lack the programs by which it starts
# another one (TreeLauncherSubreaper and its helper).
SANITIZER_WHEELS = {
    "nvidia-cuda-sanitizer-api==13.4.92": "d36bc50b67a34db08df41aef36e0748e5c71fee978cd2675fda5981415a15103",
}

SANITIZER_FILES = [
    "nvidia/cu13/bin/*",
    "nvidia/cu13/compute-sanitizer/*",
]

SANITIZER_REMOVED = [
    "nvidia/cu13/compute-sanitizer/docs",
    "nvidia/cu13/compute-sanitizer/include",
    "nvidia/cu13/compute-sanitizer/x86",
]
