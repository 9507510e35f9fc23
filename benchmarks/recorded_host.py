"""Traces whose host side is PyTorch's own, and whose GPU is on paper.

A program runs on the meta device under PyTorch's profiler: its operators, their nesting and shapes, sequence numbers,
annotations and Python frames are those of real runs. The times are given anew: each operator and frame takes the host
some µs, and launches the kernels that it has on a GPU, which take as long as a roofline says. Marker ranges (`__item`,
`__nccl ...`) say what only a machine with a GPU does. Several ranks wait for each other in their collectives.
"""

import collections
import gzip
import json
import math
import random
import tempfile
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

PAPER = None


@contextmanager
def paper():
    global PAPER
    old = PAPER
    root = Node("root", "root", 0, 1e18, {}, 0)
    PAPER = [root]
    try:
        yield root
    finally:
        PAPER = old


@contextmanager
def _node(name, cat):
    n = Node(name, cat, 0, 0, {}, 0)
    PAPER[-1].kids.append(n)
    PAPER.append(n)
    yield n
    PAPER.pop()


def py(name):
    return _node(name, "python_function")


def aop(name):
    return _node(name, "cpu_op")


def splice(root):
    PAPER[-1].kids.extend(root.kids)


def sdpa(q, k, v, is_causal=False):
    """As a GPU dispatches it; on the meta device PyTorch would write it out."""
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, False)[0]


def rf(name):
    return _node(name, "user_annotation") if PAPER is not None else record_function(name)


class X:
    """markers: what happens on a GPU machine"""

    @staticmethod
    def m(s):
        with rf("__" + s):
            pass


def item():
    return X.m("item")


def h2d(b, pinned=False):
    X.m(f"h2d {int(b)} {int(pinned)}")


def d2h(b, pinned=False):
    X.m(f"d2h {int(b)} {int(pinned)}")


def host(us):
    X.m(f"host {us}")


def nccl(kind, nbytes, sync=False, n=8, group="default_pg"):
    X.m(f"nccl {kind} {int(nbytes)} {int(sync)} {n} {group}")


def waitcomm():
    X.m("waitcomm")


def devsync():
    X.m("devsync")


def call(name, us):
    X.m(f"call {name} {us}")


def kern(name, us, stream=7):
    X.m(f"kern {us} {stream} {name}")


def op(name):
    return rf("__op " + name)


GPUS = {
    "H100": ("NVIDIA H100 80GB HBM3", 9, 0, 132, 989e12, 60e12, 3.35e12, 85e9),
    "A100": ("NVIDIA A100-SXM4-80GB", 8, 0, 108, 312e12, 19.5e12, 2.0e12, 85e9),
    "V100": ("Tesla V100-SXM2-32GB", 7, 0, 80, 125e12, 15.7e12, 0.9e12, 34e9),
    "H200": ("NVIDIA H200", 9, 0, 132, 989e12, 60e12, 4.8e12, 150e9),
    "T4": ("Tesla T4", 7, 5, 40, 65e12, 8.1e12, 0.32e12, 15.8e9),
    "4090": ("NVIDIA GeForce RTX 4090", 8, 9, 128, 165e12, 82e12, 1.0e12, 25e9),
    "B200": ("NVIDIA B200", 10, 0, 148, 2250e12, 75e12, 8e12, 190e9),
}
SZ = {
    "float": 4,
    "double": 8,
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "long int": 8,
    "int": 4,
    "bool": 1,
    "unsigned char": 1,
}
VIEW = {
    "view",
    "transpose",
    "t",
    "expand",
    "unsqueeze",
    "squeeze",
    "slice",
    "select",
    "permute",
    "as_strided",
    "reshape",
    "detach",
    "empty",
    "empty_strided",
    "empty_like",
    "new_empty",
    "split",
    "chunk",
    "narrow",
    "unbind",
    "_unsafe_view",
    "alias",
    "flatten",
    "unfold",
    "empty_permuted",
    "split_with_sizes",
    "lift_fresh",
    "result_type",
    "expand_as",
    "view_as",
    "resolve_conj",
    "resolve_neg",
    "is_nonzero",
    "resize_",
    "set_",
    "unflatten",
    "_has_compatible_shallow_copy_type",
}


def numel(d):
    n = 1
    for x in d:
        n *= x
    return n


class Cfg:
    def __init__(self, **k):
        self.gpu = "H100"
        self.tf32 = False
        self.seed = 1
        self.py_us = 0.6
        self.op_us = 2.2
        self.launch_us = 4.0
        self.shapes = True
        self.stack = False
        self.old = None
        self.backward_thread = True
        self.step_names = None
        self.rank = None
        self.world = None
        self.gap = 0.0
        self.device = 0
        self.flows = True
        self.gpu_ann = True
        self.slow = 1.0
        self.pinned_names = True
        self.skew_us = 0
        self.clock = 0.0
        self.extra_py = 0
        self.sync_end = False
        self.sync_events = False
        self.eff = 0.62
        self.gpu_slow = 1.0
        for a, b in k.items():
            assert hasattr(self, a), a
            setattr(self, a, b)


def tname(ty):
    return {"float": "float", "c10::BFloat16": "c10::BFloat16", "c10::Half": "c10::Half"}.get(ty, "float")


class Kernels:
    def __init__(self, c):
        self.c = c
        _, self.maj, self.mino, self.sms, self.tc, self.f32, self.bw, _ = GPUS[c.gpu]

    def el(self, functor, nbytes, ty="float", n=None, kind="vec", lo=1.4):
        us = max(lo, nbytes / (self.bw * 0.82) * 1e6 + 1.0)
        t = tname(ty)
        n = n or 1000
        if kind == "vec":
            name = f"void at::native::vectorized_elementwise_kernel<4, at::native::{functor}, std::array<char*, 3ul> >(int, at::native::{functor}, std::array<char*, 3ul>)".replace(
                "T0", t
            )
        elif kind == "un":
            name = f"void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::{functor}>(at::TensorIteratorBase&, at::native::{functor} const&)::{{lambda(int)#1}}>(int, at::native::gpu_kernel_impl_nocast<at::native::{functor}>(at::TensorIteratorBase&, at::native::{functor} const&)::{{lambda(int)#1}})".replace(
                "T0", t
            )
        else:
            name = functor.replace("T0", t)
        return [(name, us, [max(1, min(n // 512, 60000)), 1, 1], [128, 1, 1])]

    def gemm(self, m, n, k, b, ty):
        half = ty in ("c10::BFloat16", "c10::Half")
        sz = 2 if half else 4
        fl = 2.0 * m * n * k * b
        by = (m * k + k * n + m * n) * b * sz
        tiles = math.ceil(m / 128) * math.ceil(n / 128) * b
        waves = math.ceil(tiles / self.sms) / max(tiles / self.sms, 1e-9)
        util = 1 / waves if tiles > self.sms else max(tiles / self.sms, 0.15)
        peak = self.tc if half else (self.tc / 2 if self.c.tf32 and self.maj >= 8 else self.f32)
        us = (
            max(
                fl / (peak * self.c.eff * (util if tiles > self.sms * 0.5 else max(util, 0.3))) * 1e6,
                by / (self.bw * 0.8) * 1e6,
            )
            + 1.8
        )
        tiles < self.sms / 3 and k > 2048
        d = {"c10::BFloat16": "bf16", "c10::Half": "f16"}.get(ty)
        if m * b == 1 or n == 1:
            name = (
                "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4, 4, false, true, cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<__nv_bfloat16 const>, float> >"
                if half
                else "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, false, cublasGemvParamsEx<int>>"
            )
        elif half:
            name = {
                7: f"volta_{'fp16' if d == 'f16' else 'bf16'}_s884gemm_fp16_128x128_ldg8_f2f_tn"
                if self.mino == 0
                else "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn",
                8: f"ampere_{'bf16' if d == 'bf16' else 'fp16'}_s16816gemm_{'bf16' if d == 'bf16' else 'fp16'}_128x128_ldg8_f2f_stages_32x5_tn",
                9: "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT"
                if d == "bf16"
                else "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT",
                10: "nvjet_tst_256x256_64x4_2x1_2cta_v_bz_TNT",
            }[self.maj]
        elif self.c.tf32 and self.maj >= 8:
            name = (
                "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize2x1x1_execute_segment_k_off_kernel__5x_cublas"
                if self.maj == 9
                else "ampere_s1688gemm_fp32_128x128_ldg8_relu_f2f_stages_32x3_tn".replace(
                    "s1688gemm_fp32", "tf32_s1688gemm"
                )
            )
        else:
            name = {
                7: "volta_sgemm_128x64_tn",
                8: "ampere_sgemm_128x64_tn",
                9: "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x4x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas",
                10: "cutlass_80_simt_sgemm_128x128_8x4_tn_align1",
            }[self.maj]
        return [
            (
                name,
                us,
                [max(1, min(tiles, 132 if self.maj >= 9 and half else 10**6)), 1, 1],
                [384 if self.maj >= 9 else 256, 1, 1],
            )
        ]

    def of(self, name, dims, ty, conc):
        """kernels of an operator; None: look at its children; []: none"""
        n = name.split("::", 1)[-1] if "::" in name else name
        if not name.startswith("aten::"):
            return None
        if n in VIEW:
            return []
        D = [d for d in dims if d and isinstance(d[0], int)] if dims else []
        first = (ty or ["float"])[0] if ty else "float"
        if first not in SZ:
            first = "float"
        s = SZ[first]
        big = max([numel(d) for d in D] or [1])
        tot = sum(
            numel(d) * SZ.get(t, 4) for d, t in zip(dims or [], ty or [], strict=False) if d and isinstance(d[0], int)
        )
        if n in ("mm", "addmm", "bmm", "baddbmm"):
            a, b = (D[-2], D[-1]) if n in ("mm", "bmm") else (D[1], D[2])
            if len(a) == 2:
                return self.gemm(a[0], b[1], a[1], 1, ty[0])
            return self.gemm(a[1], b[2], a[2], a[0], ty[0])
        if n in ("convolution", "_convolution", "conv2d", "conv1d"):
            return None
        if n in (
            "cudnn_convolution",
            "convolution_overrideable",
            "_slow_conv2d_forward",
            "mkldnn_convolution",
            "convolution_backward",
            "convolution_meta",
        ):
            return None
        if n == "_scaled_dot_product_flash_attention":
            B, H, S, d = D[0]
            L = D[1][2]
            fl = 4 * B * H * S * L * d * (0.5 if conc and "True" in conc else 1)
            us = max(fl / (self.tc * 0.5) * 1e6, tot / self.bw * 1e6 / 0.6) + 3
            if self.maj < 8:
                return [
                    (
                        "fmha_cutlassF_f16_aligned_64x64_rf_sm75(PyTorchMemEffAttention::AttentionKernel<cutlass::half_t, cutlass::arch::Sm75, true, 64, 64, 64, true, true>::Params)",
                        us * 1.6,
                        [S // 64 + 1, H, B],
                        [32, 4, 1],
                    )
                ]
            return [
                (
                    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 32, 4, false, false, cutlass::bfloat16_t, Flash_kernel_traits<128, 128, 32, 4, cutlass::bfloat16_t> >, false, true, false, false, true, true, false, false>(pytorch_flash::Flash_fwd_params)",
                    us,
                    [S // 128 + 1, B, H],
                    [128, 1, 1],
                )
            ]
        if n == "_scaled_dot_product_flash_attention_backward":
            B, H, S, d = D[0]
            fl = 10 * B * H * S * S * d * 0.5
            us = max(fl / (self.tc * 0.4) * 1e6, 6)
            t = "Flash_bwd_kernel_traits<64, 128, 128, 8, 4, 4, 4, false, false, cutlass::bfloat16_t, Flash_kernel_traits<64, 128, 128, 8, cutlass::bfloat16_t> >"
            return [
                (
                    f"void pytorch_flash::flash_bwd_dot_do_o_kernel<true, {t}>(pytorch_flash::Flash_bwd_params)",
                    us * 0.06 + 2,
                    [S // 64 + 1, B, H],
                    [256, 1, 1],
                ),
                (
                    f"void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<{t}, false, true, false, false, true, true, false>(pytorch_flash::Flash_bwd_params)",
                    us,
                    [S // 128 + 1, B, H],
                    [256, 1, 1],
                ),
                (
                    f"void pytorch_flash::flash_bwd_convert_dq_kernel<{t}>(pytorch_flash::Flash_bwd_params, int)",
                    us * 0.06 + 2,
                    [S // 64 + 1, B, H],
                    [256, 1, 1],
                ),
            ]
        if n in ("copy_", "clone", "_to_copy", "contiguous", "to"):
            return None
        if n in ("embedding",):
            return None
        if n == "index_select":
            return self.el(
                "void at::native::(anonymous namespace)::indexSelectLargeIndex<T0, long, unsigned int, 2, 2, -2, true>(at::cuda::detail::TensorInfo<T0, unsigned int>, long)",
                2 * numel(D[-1]) * D[0][-1] * s,
                first,
                kind="raw",
            )
        if n == "embedding_dense_backward":
            return self.el(
                "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<T0, float, long>(long const*, T0 const*, T0*, int, long, int)",
                tot * 3,
                first,
                kind="raw",
            )
        if n in ("native_layer_norm",):
            return self.el(
                "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<T0, float>(int, float, T0 const*, T0 const*, T0 const*, float*, float*, T0*)",
                2 * numel(D[0]) * s,
                first,
                kind="raw",
                lo=3,
            )
        if n == "native_layer_norm_backward":
            return self.el(
                "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<T0, float>(T0 const*, T0 const*, float const*, float const*, T0 const*, T0*, int)",
                3 * numel(D[0]) * s,
                first,
                kind="raw",
                lo=3,
            ) + self.el(
                "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<T0, float, 64u, 1u, 32u, true, true, false>(long, long, T0 const*, T0 const*, float const*, float const*, T0*, T0*)",
                2 * numel(D[0]) * s,
                first,
                kind="raw",
                lo=4,
            )
        if n in ("_softmax", "_log_softmax"):
            return self.el(
                "void (anonymous namespace)::cunn_SoftMaxForward<8, T0, float, T0, (anonymous namespace)::SoftMaxForwardEpilogue>(T0*, T0 const*, int)"
                if n == "_softmax"
                else "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, T0, float, T0, at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue>(T0*, T0 const*, int)",
                2.6 * numel(D[0]) * s,
                first,
                kind="raw",
                lo=3,
            )
        if n in ("_softmax_backward_data", "_log_softmax_backward_data"):
            return self.el(
                "void at::native::(anonymous namespace)::cunn_SoftMaxBackward<4, T0, float, T0, at::native::(anonymous namespace)::SoftMaxBackwardEpilogue>(T0*, T0 const*, T0 const*, int)",
                3 * numel(D[0]) * s,
                first,
                kind="raw",
                lo=3,
            )
        if n in ("native_group_norm",):
            return self.el(
                "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<T0>(long, T0, T0 const*, T0*, T0*)",
                numel(D[0]) * s,
                first,
                kind="raw",
                lo=3,
            ) + self.el("(anonymous namespace)::GroupNormForward", 2 * numel(D[0]) * s, first)
        if n in ("native_group_norm_backward",):
            return self.el(
                "void at::native::(anonymous namespace)::ComputeInternalGradientsCUDAKernel<T0>(long, T0 const*, T0 const*, T0*, T0*)",
                2 * numel(D[0]) * s,
                first,
                kind="raw",
                lo=3,
            ) + self.el("(anonymous namespace)::GroupNormBackward", 3 * numel(D[0]) * s, first)
        if n in ("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"):
            return self.el(
                "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(cudnnTensorStruct, float const*, cudnnTensorStruct, float*, float const*, float const*, float, float, float*, float*, float*, float*, float, float)",
                3 * numel(D[0]) * s,
                first,
                kind="raw",
                lo=4,
            )
        if n in ("native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward"):
            return self.el(
                "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float, float, float, float, cudnnTensorStruct, float const*, cudnnTensorStruct, float const*, cudnnTensorStruct, float*, float const*, float*, float*, float const*, float const*, float)",
                4 * numel(D[0]) * s,
                first,
                kind="raw",
                lo=4,
            )
        if n in (
            "max_pool2d_with_indices",
            "max_pool2d_with_indices_backward",
            "avg_pool2d",
            "upsample_nearest2d",
            "upsample_nearest2d_backward",
        ):
            return self.el(
                f"void at::native::(anonymous namespace)::{n}_kernel<T0, T0>(int, T0 const*, long, long, long)",
                2 * big * s,
                first,
                kind="raw",
                lo=3,
            )
        if n in (
            "sum",
            "mean",
            "norm",
            "amax",
            "max",
            "min",
            "any",
            "all",
            "argmax",
            "linalg_vector_norm",
            "std",
            "var",
            "var_mean",
            "cumsum",
            "nll_loss_forward",
            "logsumexp",
            "prod",
            "argsort",
            "sort",
            "topk",
            "nll_loss_backward",
        ):
            r = {
                "cumsum": "void at_cuda_detail::cub::DeviceScanKernel<at_cuda_detail::cub::DeviceScanPolicy<long>::Policy600, long const*, long*, int>",
                "topk": "void at::native::sbtopk::gatherTopK<T0, unsigned int, 2, false>(at::cuda::detail::TensorInfo<T0 const, unsigned int>, unsigned int)",
                "nll_loss_forward": "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<T0, float, long>(T0*, T0*, T0*, long*, T0*, bool, long, long, long, long)",
                "nll_loss_backward": "void at::native::(anonymous namespace)::nll_loss_backward_reduce_cuda_kernel_2d<T0, long>(T0*, T0*, long*, T0*, T0*, bool, int, int, long, long)",
            }.get(
                n,
                "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<T0, at::native::func_wrapper_t<T0, at::native::sum_functor<T0, float, T0>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, T0, 4> >(at::native::ReduceOp<T0>)",
            )
            return self.el(r, big * s if "nll" not in n else D[-1][0] * 8 if D else 8, first, kind="raw", lo=3)
        if n in ("item", "_local_scalar_dense"):
            return []
        if n in (
            "zeros",
            "ones",
            "full",
            "arange",
            "zeros_like",
            "ones_like",
            "new_zeros",
            "scalar_tensor",
            "new_ones",
            "fill_",
            "zero_",
            "full_like",
            "linspace",
        ):
            if n in ("fill_", "zero_", "arange", "full", "scalar_tensor"):
                return self.el("FillFunctor<T0>", big * s, first)
            return None
        if n in (
            "matmul",
            "linear",
            "einsum",
            "layer_norm",
            "group_norm",
            "batch_norm",
            "_batch_norm_impl_index",
            "softmax",
            "log_softmax",
            "dropout",
            "cross_entropy_loss",
            "nll_loss",
            "nll_loss_nd",
            "scaled_dot_product_attention",
            "repeat_interleave",
            "max_pool2d",
            "type_as",
            "float",
            "where",
            "pad",
            "tril",
            "rms_norm",
            "_fused_rms_norm",
            "adaptive_avg_pool2d",
            "stack",
            "hstack",
            "vstack",
            "concat",
            "mse_loss",
            "silu",
            "gelu",
            "relu",
            "__and__",
            "slice_backward",
            "select_backward",
            "unsafe_chunk",
            "unsafe_split",
            "slice_scatter",
            "huber_loss",
            "masked_fill",
            "ne",
            "lt",
        ) and n not in (
            "silu",
            "gelu",
            "where",
            "mse_loss",
            "ne",
            "lt",
            "slice_backward",
            "select_backward",
            "tril",
            "relu",
            "_fused_rms_norm",
        ):
            return None
        if n in ("cat",):
            return self.el(
                "void at::native::(anonymous namespace)::CatArrayBatchedCopy<T0, unsigned int, 3, 64, 64>(T0*, at::native::(anonymous namespace)::CatArrInputTensorMetadata<T0, unsigned int, 64, 64>, at::native::(anonymous namespace)::TensorSizeStride<unsigned int, 4u>, int, unsigned int)",
                self.cat_bytes,
                first,
                kind="raw",
                lo=2,
            )
        if n in (
            "index",
            "gather",
            "scatter",
            "index_put_",
            "index_add_",
            "index_add",
            "_index_put_impl_",
            "scatter_add_",
        ):
            return self.el(
                f"void at::native::{n.strip('_')}_elementwise_kernel<128, 4, at::native::gpu_index_kernel<at::native::index_kernel_impl<at::native::OpaqueType<2> > > >(long, at::native::gpu_index_kernel)",
                tot,
                first,
                kind="raw",
                lo=2,
            )
        fun = {
            "add": "CUDAFunctor_add<T0>",
            "add_": "CUDAFunctor_add<T0>",
            "mul": "BinaryFunctor<T0, T0, T0, at::native::binary_internal::MulFunctor<float> >",
            "div": "BinaryFunctor<T0, T0, T0, at::native::binary_internal::DivFunctor<float> >",
            "sub": "CUDAFunctorOnSelf_add<T0>",
            "silu": "(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)::{lambda()#1}",
            "gelu": "GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#1}",
            "native_dropout": "dropout_kernel",
            "relu": "(anonymous namespace)::launch_clamp_scalar(at::TensorIteratorBase&, c10::Scalar, c10::Scalar)::{lambda()#1}",
        }.get(
            n,
            f"{n.strip('_')}_kernel_cuda(at::TensorIteratorBase&)::{{lambda()#1}}::operator()() const::{{lambda(T0)#1}}",
        )
        if n == "native_dropout":
            return self.el(
                "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<T0, float, unsigned int, 1, 4, bool>(at::cuda::detail::TensorInfo<T0 const, unsigned int>, float)",
                big * (2 * s + 1),
                first,
                kind="raw",
            )
        if not D:
            return self.el(fun, 8, first) if n not in ("_debug_has_internal_overlap", "item") else []
        return self.el(fun, (tot + big * s) if len(D) else 8, first, n=big)

    cat_bytes = 1e6

    def copy_kernels(self, name, dims, ty):
        D = [d for d in dims if d and isinstance(d[0], int)]
        if not D:
            return self.el(
                "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(float)#1}",
                8,
            )
        big = max(numel(d) for d in D)
        t = [x for x in ty if x in SZ] or ["float"]
        return self.el(
            "bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}"
            if "c10::BFloat16" in t
            else "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(float)#1}",
            big * (SZ[t[0]] + SZ[t[-1]]),
            t[0],
            n=big,
            kind="un",
        )

    def conv(self, dims, ty, out_hint, backward=False):
        D = [d for d in dims if d and isinstance(d[0], int)]
        x, w = (D[1], D[2]) if backward else (D[0], D[1])
        y = D[0] if backward else out_hint
        if len(x) == 3:
            x = [*x, 1]
            w = [*w, 1]
            y = [*y, 1]
        fl = 2.0 * numel(y) * w[1] * w[2] * w[3]
        half = ty[0] in ("c10::BFloat16", "c10::Half")
        peak = self.tc if half else (self.tc / 2 if self.c.tf32 and self.maj >= 8 else self.f32)
        by = (numel(x) + numel(y)) * SZ.get(ty[0], 4)
        us = max(fl / (peak * 0.45) * 1e6, by / (self.bw * 0.7) * 1e6) + 3
        arch = {7: "volta", 8: "sm80", 9: "sm90", 10: "sm100"}[self.maj]
        p = (
            "f16f16_f16f32_f32"
            if half
            else ("tf32f32_tf32f32_f32" if self.c.tf32 and self.maj >= 8 else "f32f32_f32f32_f32")
        )

        def mk(k, u):
            return (
                f"{arch}_xmma_{k}_implicit_gemm_{p}_nhwckrsc_nhwc_tilesize128x64x64_stage3_warpsize2x2x1_g1_tensor16x8x16_execute_kernel__5x_cudnn"
                if (half or self.c.tf32) and self.maj >= 8
                else (
                    "volta_scudnn_128x64_relu_interior_nn_v1"
                    if not half and k == "fprop"
                    else "void cudnn::cnn::dgrad2d_grouped_direct_kernel"
                    if False
                    else "volta_scudnn_128x64_stridedB_splitK_interior_nn_v1"
                    if not half
                    else f"volta_fp16_s884cudnn_fp16_256x64_ldg8_{k}_f2f_exp_small_nhwc2nchw_tn_v1"
                )
                if self.maj < 8
                else "void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, false, false, true>(int, int, int, float const*, int, float*, float const*, kernel_conv_params, unsigned long long, int, float, float, int, float const*, float const*, bool, int, int)",
                u,
                [max(1, numel(y) // 16384), 1, 1],
                [128, 1, 1],
            )

        if backward:
            return [mk("dgrad", us * 1.05), mk("wgrad", us * 1.15)]
        return [mk("fprop", us)]


class Node:
    __slots__ = ("args", "cat", "dur", "kids", "name", "tid", "ts")

    def __init__(s, name, cat, ts, dur, args, tid):
        s.name, s.cat, s.ts, s.dur, s.args, s.tid, s.kids = name, cat, ts, dur, args, tid, []


def record(fn, stack=False, setup=None):
    acts = [ProfilerActivity.CPU]
    with profile(activities=acts, record_shapes=True, with_stack=stack) as p:
        fn(p)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        p.export_chrome_trace(str(path))
        d = json.loads(path.read_text(encoding="utf-8"))
    ev = [
        e
        for e in d["traceEvents"]
        if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation", "python_function")
    ]
    main = collections.Counter(e["tid"] for e in ev if e["cat"] != "python_function").most_common(1)[0][0]
    ev = [e for e in ev if e["tid"] == main]
    ev.sort(key=lambda e: (e["ts"], -e["dur"]))
    root = Node("root", "root", 0, 1e18, {}, main)
    st = [root]
    K = Kernels(Cfg())
    for e in ev:
        n = Node(e["name"], e["cat"], e["ts"], e["dur"], e.get("args", {}), e["tid"])
        while st[-1] is not root and st[-1].ts + st[-1].dur <= n.ts:
            st.pop()
        st[-1].kids.append(n)
        st.append(n)
    prune(root, K)
    return root


def is_leaf(n, K):
    if n.cat != "cpu_op":
        return False
    nm = n.name.split("::")[-1]
    if nm in ("convolution_backward", "convolution", "copy_"):
        return n.name.startswith("aten")
    if not n.name.startswith("aten::"):
        return n.name.startswith("prims::")
    K.cat_bytes = 1
    try:
        r = K.of(n.name, n.args.get("Input Dims"), n.args.get("Input type"), n.args.get("Concrete Inputs"))
    except Exception:
        return not n.kids
    return r is not None


def prune(n, K):
    if (n.cat == "cpu_op" and is_leaf(n, K)) or n.name in ("<built-in function isinstance>",):
        n.kids = []
        return
    out = []
    for k in n.kids:
        if k.cat == "python_function" and (
            k.name.startswith(
                (
                    "<built-in",
                    "torch/autograd/profiler",
                    "torch/_ops.py",
                    "torch/profiler",
                    "torch/_prims",
                    "torch/_refs",
                    "torch/_decomp",
                    "torch/_meta",
                    "torch/_library",
                    "contextlib.py",
                    "torch/utils/_python_dispatch",
                    "torch/_guards",
                    "torch/_jit_internal",
                    "torch/utils/_contextlib",
                    "recorded_host.py",
                    "torch/_inductor",
                    "torch/_subclasses",
                    "torch/fx",
                )
            )
            or (False)
        ):
            prune(k, K)
            out.extend(k.kids)
            continue
        prune(k, K)
        out.append(k)
    n.kids = out


class Sim:
    def __init__(self, root, cfg, t0=0.0):
        self.c = cfg
        self.root = root
        self.K = Kernels(cfg)
        self.rng = random.Random(cfg.seed)
        self.now = 1_000_000.0 + t0
        self.ev = []
        self.free = {}
        self.q = collections.deque()
        self.ext = 1
        self.corr = 1000
        self.MAIN = 4711
        self.BW = 4790
        self.tid = self.MAIN
        self.comm_done = 0.0
        self.truth = collections.Counter()
        self.graph = None
        self.ann = []
        self.seq_off = 0
        self.pending_ann = []
        self.cstream = 7
        self.ncoll = 0
        self.wait_next = 0.0
        self.rename = None

    def host(self, us):
        self.now += us * self.c.slow

    def add(self, cat, name, ts, dur, tid, args):
        self.ev.append(
            {"ph": "X", "cat": cat, "name": name, "pid": self.MAIN, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )
        return self.ev[-1]

    def rt(self, name, us, cat="cuda_runtime", corr=None, ext=None):
        self.corr += 1
        a = {"cbid": 211, "correlation": self.corr}
        if ext:
            a = {"External id": ext, **a}
        e = self.add(cat, name, self.now, us, self.tid, a)
        self.now += us
        return e

    def gpu(self, cat, name, us, corr, ext, stream, extra, after=0.0):
        us *= self.rng.uniform(0.97, 1.03) * self.c.gpu_slow
        st = max(
            self.now + 2.0 + self.rng.random(),
            self.free.get(stream, 0) + 0.8,
            after,
            self.wait_next if stream == self.cstream else 0,
        )
        if stream == self.cstream:
            self.wait_next = 0.0
        a = {
            "External id": ext,
            "queued": 0,
            "device": self.c.device,
            "context": 1,
            "stream": stream,
            "correlation": corr,
            **extra,
        }
        if not ext:
            a.pop("External id")
        self.ev.append(
            {"ph": "X", "cat": cat, "name": name, "pid": self.c.device, "tid": stream, "ts": st, "dur": us, "args": a}
        )
        self.free[stream] = st + us
        for x in self.ann:
            x[1] = min(x[1], st)
            x[2] = max(x[2], st + us)
        self.q.append(st + us)
        return st, st + us

    def launch(self, k, ext, stream=None):
        name, us, grid, block = k
        if self.rename:
            name = self.rename(name)
        stream = stream or self.cstream
        if self.graph is not None:
            self.graph.append((k, ext))
            return
        while self.q and self.q[0] <= self.now:
            self.q.popleft()
        lus = self.c.launch_us * self.rng.uniform(0.8, 1.3) * self.c.slow
        if len(self.q) > 1000:
            t = self.q[len(self.q) - 1000]
            if t > self.now:
                lus += t - self.now
        drv = name.startswith(("triton_", "nvjet", "pytorch_flash::")) and not self.c.old
        e = self.rt(
            "cuLaunchKernelEx" if drv and name.startswith("nvjet") else "cuLaunchKernel" if drv else "cudaLaunchKernel",
            lus,
            "cuda_driver" if drv else "cuda_runtime",
            ext=ext,
        )
        ex = {
            "registers per thread": 64,
            "shared memory": 0,
            "blocks per SM": round(numel(grid) / self.K.sms, 3),
            "warps per SM": round(numel(grid) * numel(block) / 32 / self.K.sms, 3),
            "grid": grid,
            "block": block,
            "est. achieved occupancy %": 50,
        }
        s = self.now
        self.now = e["ts"] + 1.0
        self.gpu("kernel", name, us, e["args"]["correlation"], ext, stream, ex)
        self.now = s

    def sync(self, name="cudaStreamSynchronize", all_=False, ext=None, minus=0):
        t0 = self.now
        self._sync(name, all_, ext)
        if self.c.sync_events:
            self.ev.append(
                {
                    "ph": "X",
                    "cat": "cuda_sync",
                    "name": "Context Sync" if all_ else "Stream Sync",
                    "pid": self.c.device,
                    "tid": -1 if all_ else self.cstream,
                    "ts": t0 + 0.5,
                    "dur": max(self.now - t0 - 1, 0.1),
                    "args": {
                        "stream": -1 if all_ else self.cstream,
                        "correlation": self.corr,
                        "device": self.c.device,
                        "context": 1,
                    },
                }
            )

    def _sync(self, name, all_, ext):
        t = max(self.free.values(), default=0) if all_ else self.free.get(self.cstream, 0)
        if all_ is False:
            t = max(t, self.wait_next)
        self.rt(name, max(t - self.now, 0) + 3.0, ext=ext)

    def memcpy(self, way, b, pinned, ext):
        e = self.rt("cudaMemcpyAsync", 5.0, ext=ext)
        bw = (50e9 if self.K.maj >= 9 else 24e9 if self.K.maj == 8 else 12e9) if pinned else (9e9 if b > 1e6 else 3e9)
        nm = {
            "h2d": f"Memcpy HtoD ({'Pinned' if pinned else 'Pageable'} -> Device)",
            "d2h": f"Memcpy DtoH (Device -> {'Pinned' if pinned else 'Pageable'})",
            "d2d": "Memcpy DtoD (Device -> Device)",
        }[way]
        us = b / bw * 1e6 + 1.2
        s = self.now
        self.now = e["ts"] + 2
        _st, en = self.gpu(
            "gpu_memcpy",
            nm,
            us,
            e["args"]["correlation"],
            ext,
            self.cstream,
            {"bytes": b, "memory bandwidth (GB/s)": b / us / 1e3},
        )
        self.now = s
        if (not pinned and b > 65536 and way == "h2d") or (way == "d2h" and not pinned):
            e["dur"] = max(e["dur"], en - e["ts"] + 2)
            self.now = e["ts"] + e["dur"]
            if not self.c.old:
                self.sync(ext=ext)

    def marker(self, n):
        w = n.name[2:].split(" ")
        cmd = w[0]
        if cmd == "item":
            with self.opn("aten::item"), self.opn("aten::_local_scalar_dense") as e:
                self.memcpy("d2h", 4, False, e)
        elif cmd in ("h2d", "d2h"):
            b = int(w[1])
            dims = [[b // 4]]
            copied = self.opn("aten::copy_", [dims[0], dims[0], []], ["float", "float", "Scalar"])
            with self.opn("aten::to", dims, ["float"]), self.opn("aten::_to_copy", dims, ["float"]), copied as e:
                self.memcpy(cmd, b, w[2] == "1", e)
        elif cmd == "host":
            self.host(float(w[1]) * self.rng.uniform(0.93, 1.07))
        elif cmd == "overhead":
            self.add("overhead", w[1].replace("_", " "), self.now, float(w[2]), -1, {})
            self.ev[-1]["pid"] = -1
            self.ev[-1]["tid"] = 0
            self.now += float(w[2])
        elif cmd == "async_h2d":
            self.cstream = 28
            e = None
            with self.opn("aten::copy_") as x:
                self.memcpy("h2d", int(w[1]), True, x)
            self.cstream = 7
        elif cmd == "devsync":
            self.sync("cudaDeviceSynchronize", True)
        elif cmd == "call":
            self.rt(w[1], float(w[2]) * self.rng.uniform(0.9, 1.1))
        elif cmd == "kern":
            self.launch((" ".join(w[3:]), float(w[1]), [132, 1, 1], [256, 1, 1]), self.cur, int(w[2]))
        elif cmd == "graph":
            self.graph = []
        elif cmd == "endgraph":
            g, self.graph = self.graph, None
            e = self.rt("cudaGraphLaunch", 18 + 0.02 * len(g), ext=self.cur)
            s = self.now
            self.now = e["ts"] + 6
            for k, _ext in g:
                name, us, grid, block = k
                if self.rename:
                    name = self.rename(name)
                self.gpu(
                    "kernel",
                    name,
                    us,
                    e["args"]["correlation"],
                    0,
                    self.cstream,
                    {
                        "registers per thread": 64,
                        "shared memory": 0,
                        "blocks per SM": 1.0,
                        "warps per SM": 8.0,
                        "grid": grid,
                        "block": block,
                        "est. achieved occupancy %": 50,
                        "graph id": 3,
                        "graph node id": 1,
                    },
                )
                if stq := self.q:
                    stq.pop()
            self.now = s
        elif cmd == "waitcomm":
            self.wait_next = max(self.wait_next, self.comm_done)
            self.rt("cudaStreamWaitEvent", 1.2)

    def nccl(self, n):
        _, kind, b, sync, nr, group = n.name[2:].split(" ")
        b = int(b)
        nr = int(nr)
        kn = {
            "all_reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
            "all_gather": "ncclDevKernel_AllGather_RING_LL",
            "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
            "all_to_all": "ncclDevKernel_SendRecv",
            "broadcast": "ncclDevKernel_Broadcast_RING_LL",
            "send": "ncclDevKernel_SendRecv",
            "recv": "ncclDevKernel_SendRecv",
        }[kind]
        if self.c.old:
            kn = {
                "all_reduce": "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
                "all_gather": "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)",
                "reduce_scatter": "ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclWorkElem)",
            }.get(kind, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)")
        bw = {"H100": 360e9, "A100": 200e9, "V100": 60e9, "H200": 360e9}.get(self.c.gpu, 200e9) / (
            2 if kind == "all_reduce" else 1
        )
        if group.startswith("net"):
            bw = 40e9 / (2 if kind == "all_reduce" else 1)
        us = b / bw * 1e6 + 12
        us *= self.rng.uniform(0.97, 1.05)
        opname = {
            "all_reduce": "c10d::allreduce_",
            "all_gather": "c10d::_allgather_base_",
            "reduce_scatter": "c10d::_reduce_scatter_base_",
            "all_to_all": "c10d::alltoall_base_",
            "broadcast": "c10d::broadcast_",
            "send": "c10d::send",
            "recv": "c10d::recv_",
        }[kind]
        ann = {
            "all_reduce": "nccl:all_reduce",
            "all_gather": "nccl:_all_gather_base",
            "reduce_scatter": "nccl:_reduce_scatter_base",
            "all_to_all": "nccl:all_to_all",
            "broadcast": "nccl:broadcast",
            "send": "nccl:send 0->1",
            "recv": "nccl:recv 0<-1",
        }[kind]
        ns = b // 2
        with self.opn(opname, [[[ns]]] if False else [[ns]], ["c10::BFloat16"]):
            a = {
                "Collective name": ann[5:].split()[0],
                "dtype": "BFloat16",
                "In msg nelems": ns,
                "Out msg nelems": ns,
                "Group size": nr,
                "Process Group Name": group.replace("default_pg", "0"),
                "Process Group Description": group,
                "Process Group Ranks": str(list(range(nr))),
                "In split size": "[]",
                "Out split size": "[]",
            }
            with self.opn("record_param_comms", [[ns]], ["c10::BFloat16"], extra=a if not self.c.old else {}):
                s0 = self.now
                ext = self.ext
                self.ext += 1
                self.now += 6
                self.rt("cudaEventRecord", 1.2)
                self.rt("cudaStreamWaitEvent", 1.1)
                e = self.rt("cudaLaunchKernelExC" if not self.c.old else "cudaLaunchKernel", 9.0, ext=ext)
                self.now += 3
                self.add("user_annotation", ann, s0, self.now - s0, self.tid, {"External id": ext, "Ev Idx": ext})
        ready = max(e["ts"] + 2.5, self.free.get(20, 0) + 0.8, self.free.get(self.cstream, 0))
        end = yield (ready, us)
        extra = {
            "registers per thread": 96,
            "shared memory": 82240,
            "blocks per SM": 0.18,
            "warps per SM": 3.0,
            "grid": [24, 1, 1],
            "block": [544, 1, 1],
            "est. achieved occupancy %": 0,
        }
        if not self.c.old:
            extra.update(a)
        self.ev.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": kn + ("" if self.c.old else "(ncclDevKernelArgsStorage<4096ul>)"),
                "pid": self.c.device,
                "tid": 20,
                "ts": ready,
                "dur": end - ready,
                "args": {
                    "External id": ext,
                    "queued": 0,
                    "device": self.c.device,
                    "context": 1,
                    "stream": 20,
                    "correlation": e["args"]["correlation"],
                    **extra,
                },
            }
        )
        self.free[20] = end
        self.comm_done = end
        for x in self.ann:
            x[1] = min(x[1], ready)
            x[2] = max(x[2], end)
        if sync == "1":
            self.wait_next = max(self.wait_next, end)

    class _O:
        def __init__(s, sim, name, dims, ty, extra):
            s.sim, s.name, s.dims, s.ty, s.extra = sim, name, dims, ty, extra

        def __enter__(s):
            s.t = s.sim.now
            s.e = s.sim.ext
            s.sim.ext += 1
            s.sim.now += s.sim.c.op_us * 0.5
            return s.e

        def __exit__(s, *a):
            s.sim.now += 0.4
            ar = {"External id": s.e, "Record function id": 0, "Ev Idx": s.e}
            if s.dims and s.sim.c.shapes:
                ar.update({"Input Dims": s.dims, "Input type": s.ty})
            s.sim.add("cpu_op", s.name, s.t, s.sim.now - s.t, s.sim.tid, {**ar, **s.extra})

    def opn(self, name, dims=None, ty=None, extra=None):
        if extra is None:
            extra = {}
        return Sim._O(self, name, dims, ty, extra)

    cur = 0

    def walk(self, n):
        c = self.c
        if n.cat == "root":
            for k in n.kids:
                yield from self.walk(k)
            return
        if n.name.startswith("__") and n.cat == "user_annotation":
            if n.name.startswith("__nccl"):
                yield from self.nccl(n)
            elif n.name.startswith("__op "):
                with self.opn(n.name[5:]) as e:
                    old, self.cur = self.cur, e
                    for k in n.kids:
                        yield from self.walk(k)
                    self.cur = old
            elif n.name.startswith("__sleep"):
                pass
            else:
                self.marker(n)
            return
        if n.cat == "python_function" and not c.stack:
            self.now += c.py_us * 0.5 * c.slow
            for k in n.kids:
                yield from self.walk(k)
            return
        moved = False
        if c.backward_thread and n.name.startswith("autograd::engine::evaluate_function") and self.tid == self.MAIN:
            self.tid = self.BW
            moved = True
        t0 = self.now
        ext = self.ext
        isop = n.cat == "cpu_op"
        if isop or n.cat == "user_annotation":
            self.ext += 1
        us = (c.op_us if isop else c.py_us if n.cat == "python_function" else 1.5) * c.slow * self.rng.uniform(0.7, 1.4)
        self.now += us * 0.6
        short = n.name.split("::")[-1]
        mark = None
        if n.cat == "user_annotation":
            mark = [n.name, 1e18, -1, ext]
            self.ann.append(mark)
        old, self.cur = self.cur, ext if isop else self.cur
        if isop:
            D, ty = n.args.get("Input Dims") or [], n.args.get("Input type") or []
            ks = None
            if n.name == "aten::copy_":
                ks = self.K.copy_kernels(n.name, D, ty)
            elif n.name == "aten::convolution":
                ks = self.K.conv(D, ty, self.conv_out(D, n.args.get("Concrete Inputs")))
            elif n.name == "aten::convolution_backward":
                ks = self.K.conv(D, ty, None, True)
            elif not n.kids and n.name.startswith("aten::"):
                self.K.cat_bytes = 2 * max(self.last_bytes, 1000)
                try:
                    ks = self.K.of(n.name, D, ty, n.args.get("Concrete Inputs"))
                except Exception:
                    ks = self.K.el(f"{short}_kernel", 1000)
            if ks:
                dd = [d for d in D if d and isinstance(d[0], int)]
                if dd:
                    self.last_bytes = max(numel(d) for d in dd) * 2
                for k in ks:
                    self.launch(k, ext)
                    self.now += 0.5
        for k in n.kids:
            yield from self.walk(k)
        self.cur = old
        if mark:
            self.ann.remove(mark)
            self.pending_ann.append(mark)
        self.now += us * 0.4
        a = dict(n.args)
        if n.cat == "python_function":
            pass
        else:
            a["External id"] = ext
            a["Ev Idx"] = ext
            if not c.shapes:
                for x in ("Input Dims", "Input type", "Input Strides", "Concrete Inputs"):
                    a.pop(x, None)
        self.add(n.cat, n.name, t0, self.now - t0, self.tid, a)
        if moved:
            self.tid = self.MAIN

    last_bytes = 1e5

    def conv_out(self, D, conc):
        x, w = D[0], D[1]
        try:
            st = json.loads(conc[3])
            pad = json.loads(conc[4])
        except Exception:
            st, pad = [1, 1], [0, 0]
        o = [x[0], w[0]]
        for i in range(2, len(x)):
            o.append((x[i] + 2 * pad[min(i - 2, len(pad) - 1)] - w[i]) // st[min(i - 2, len(st) - 1)] + 1)
        return o


def run(sims):
    """all ranks together"""
    gens = [s.walk(s.root) for s in sims]
    alive = []
    for g in gens:
        try:
            alive.append(next(g))
        except StopIteration:
            alive.append(None)
    while any(a is not None for a in alive):
        assert all(a is not None for a in alive), "ranks differ"
        len(sims) if len(sims) > 1 else 1
        start = max(a[0] for a in alive)
        end = start + max(a[1] for a in alive)
        for i, g in enumerate(gens):
            try:
                alive[i] = g.send(end + sims[i].rng.uniform(0, 1.5))
            except StopIteration:
                alive[i] = None
    for s in sims:
        if s.c.sync_end:
            s.tid = s.MAIN
            s.sync("cudaDeviceSynchronize", True)


def write(sim, path, drop=None, meta=None, begin=0, end=1e18):
    c = sim.c
    name, maj, mino, sms, *_r, mem = GPUS[c.gpu]
    ev = sim.ev
    if c.gpu_ann:
        for nm, a, b, ext in sim.pending_ann:
            if b > 0:
                ev.append(
                    {
                        "ph": "X",
                        "cat": "gpu_user_annotation",
                        "name": nm,
                        "pid": c.device,
                        "tid": 7,
                        "ts": a,
                        "dur": b - a,
                        "args": {"External id": ext},
                    }
                )
    shift = c.clock
    ev = [e for e in ev if begin <= e["ts"] - 1e6 and e["ts"] + e["dur"] - 1e6 <= end]
    if drop:
        ev = [e for e in ev if not drop(e)]
    ev.sort(key=lambda e: (e["ts"], -e["dur"]))
    out = []
    runt = {e["args"]["correlation"]: e for e in ev if e["cat"] in ("cuda_runtime", "cuda_driver")}
    for e in ev:
        e = dict(e)
        t0 = round((e["ts"] + shift) * 1e3)
        t1 = round((e["ts"] + shift + e["dur"]) * 1e3)
        e["ts"] = t0 / 1e3
        e["dur"] = (t1 - t0) / 1e3
        if c.old:
            if e["cat"] == "gpu_user_annotation":
                continue
            e["ts"] = int(e["ts"])
            e["dur"] = max(int(e["dur"]), 1 if e["cat"] != "cpu_op" else 0)
            if c.old == 2020:
                e["cat"] = {
                    "cpu_op": "Operator",
                    "user_annotation": "Operator",
                    "kernel": "Kernel",
                    "gpu_memcpy": "Memcpy",
                    "cuda_runtime": "Runtime",
                    "gpu_memset": "Memset",
                    "python_function": "python_function",
                }[e["cat"]]
                if e["cat"] == "Operator":
                    e["args"] = {
                        "Device": e["tid"],
                        "External id": e["args"].get("External id"),
                        "Trace name": "PyTorch Profiler",
                        "Trace iteration": 0,
                        **({"Input dims": e["args"]["Input Dims"]} if "Input Dims" in e["args"] else {}),
                    }
            if "External id" in e["args"] and e["cat"] in ("Kernel", "Runtime", "Memcpy"):
                e["args"] = dict(e["args"])
                e["args"]["external id"] = e["args"].pop("External id")
        out.append(e)
        if c.flows and e["cat"] in ("kernel", "gpu_memcpy", "Kernel", "Memcpy"):
            r = runt.get(e["args"]["correlation"])
            fc = "ac2g" if not c.old else "async_cpu_to_gpu"
            if r:
                out.append(
                    {
                        "ph": "s",
                        "id": r["args"]["correlation"],
                        "pid": r["pid"],
                        "tid": r["tid"],
                        "ts": round(r["ts"] + shift, 3),
                        "cat": fc,
                        "name": "ac2g" if not c.old else "async_gpu",
                    }
                )
                out.append(
                    {
                        "ph": "f",
                        "id": r["args"]["correlation"],
                        "pid": e["pid"],
                        "tid": e["tid"],
                        "ts": e["ts"],
                        "cat": fc,
                        "name": "ac2g" if not c.old else "async_gpu",
                        "bp": "e",
                    }
                )
    lo = min(e["ts"] for e in out)
    hi = max(e["ts"] + e.get("dur", 0) for e in out)
    out += [
        {"name": "process_name", "ph": "M", "ts": lo, "pid": sim.MAIN, "tid": 0, "args": {"name": "python3"}},
        {"name": "process_labels", "ph": "M", "ts": lo, "pid": sim.MAIN, "tid": 0, "args": {"labels": "CPU"}},
        {
            "name": "thread_name",
            "ph": "M",
            "ts": lo,
            "pid": sim.MAIN,
            "tid": sim.MAIN,
            "args": {"name": f"thread {sim.MAIN} (python3)"},
        },
    ]
    out.append(
        {
            "ph": "X",
            "cat": "Trace",
            "ts": lo,
            "dur": hi - lo,
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "name": "PyTorch Profiler (0)",
            "args": {"Op count": 0},
        }
    )
    out.append(
        {
            "name": "Iteration Start: PyTorch Profiler",
            "ph": "i",
            "s": "g",
            "pid": "Traces",
            "tid": "Trace PyTorch Profiler",
            "ts": lo,
        }
    )
    out.append({"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": hi})
    d = {"schemaVersion": 1}
    if any(e["cat"] in ("kernel", "Kernel") for e in out if e.get("ph") == "X") and c.old != 2020:
        d["deviceProperties"] = [
            {
                "id": c.device,
                "name": name,
                "totalGlobalMem": int(mem),
                "computeMajor": maj,
                "computeMinor": mino,
                "maxThreadsPerBlock": 1024,
                "maxThreadsPerMultiprocessor": 2048,
                "regsPerBlock": 65536,
                "warpSize": 32,
                "sharedMemPerBlock": 49152,
                "numSms": sms,
                "regsPerMultiprocessor": 65536,
                "sharedMemPerMultiprocessor": 233472,
            }
        ]
    if c.world:
        d["distributedInfo"] = {
            "backend": "nccl",
            "rank": c.rank,
            "world_size": c.world,
            "pg_count": 1,
            "pg_config": [
                {
                    "pg_name": "0",
                    "pg_desc": "default_pg",
                    "backend_config": "cuda:nccl",
                    "pg_size": c.world,
                    "ranks": list(range(c.world)),
                }
            ],
            "nccl_version": "2.27.3",
        }
    if c.shapes:
        d["record_shapes"] = 1
    if c.stack:
        d["with_stack"] = 1
    if not c.old:
        d.update(
            {
                "cuda_runtime_version": 12080,
                "cupti_version": 26,
                "cuda_driver_version": 12080,
                "trace_id": "77C6C16CEF784657A94763DE3FE086C3",
                "displayTimeUnit": "ms",
                "baseTimeNanoseconds": 1767189312000000000,
            }
        )
    if meta:
        d.update(meta)
    d["traceEvents"] = out
    d["traceName"] = "./log/" + path.name
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
        file.write(json.dumps(d))
    return path
