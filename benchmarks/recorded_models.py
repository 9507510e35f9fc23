"""Models and loops whose host side is recorded: `recorded_host.py`."""

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from recorded_host import h2d, host, kern, nccl, op, paper, py, record, rf, sdpa, splice

M = torch.device("meta")


def dt(name):
    torch.set_default_dtype({"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[name])


TP = 0  # ranks of tensor parallelism while a model is recorded


class Block(nn.Module):
    def __init__(s, d, h, ff=4, kv=None, rms=False, eager=False, causal=True):
        super().__init__()
        s.h = h
        s.ln1 = nn.LayerNorm(d)
        s.ln2 = nn.LayerNorm(d)
        s.qkv = nn.Linear(d, 3 * d)
        s.o = nn.Linear(d, d)
        s.up = nn.Linear(d, ff * d)
        s.down = nn.Linear(ff * d, d)
        s.eager = eager
        s.causal = causal
        s.drop = 0.0

    def attn(s, x, cache=None):
        B, S, d = x.shape
        q, k, v = s.qkv(x).split(d, dim=2)
        q, k, v = (t.view(B, S, s.h, d // s.h).transpose(1, 2) for t in (q, k, v))
        if cache is not None:
            k = torch.cat([cache[0], k], 2)
            v = torch.cat([cache[1], v], 2)
        if s.eager:
            a = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(d // s.h))
            if S > 1:
                a = a + torch.zeros(S, k.shape[2], device=x.device, dtype=x.dtype)
            a = F.softmax(a, dim=-1)
            if s.drop:
                a = F.dropout(a, s.drop, True)
            y = a @ v
        else:
            y = sdpa(q, k, v, s.causal and S > 1)
        return s.o(y.transpose(1, 2).reshape(B, S, d)), (k, v)

    def mlp(s, x):
        return s.down(F.gelu(s.up(x)))

    def forward(s, x, cache=None):
        a, c = s.attn(s.ln1(x), cache)
        x = x + a
        if TP:
            nccl("all_reduce", x.numel() * 2, True, TP, "tp")
        x = x + s.mlp(s.ln2(x))
        if TP:
            nccl("all_reduce", x.numel() * 2, True, TP, "tp")
        return x if cache is None else (x, c)


class GPT(nn.Module):
    def __init__(s, d=1024, h=16, L=12, V=50304, T=1024, eager=False, drop=0.0, causal=True):
        super().__init__()
        s.wte = nn.Embedding(V, d)
        s.wpe = nn.Embedding(T, d)
        s.blocks = nn.ModuleList(Block(d, h, eager=eager, causal=causal) for _ in range(L))
        s.ln = nn.LayerNorm(d)
        s.head = nn.Linear(d, V, bias=False)
        for b in s.blocks:
            b.drop = drop

    ckpt = False
    hook = None

    def forward(s, ids, y=None, caches=None):
        x = s.wte(ids) + s.wpe(torch.arange(ids.shape[1], device=ids.device))
        new = []
        for i, b in enumerate(s.blocks):
            if s.hook:
                s.hook(i, b)
            if caches is not None:
                x, c = b(x, caches[i])
                new.append(c)
            elif s.ckpt:
                x = torch.utils.checkpoint.checkpoint(b, x, use_reentrant=False, preserve_rng_state=False)
            else:
                x = b(x)
        x = s.head(s.ln(x))
        if y is not None:
            return F.cross_entropy(x.view(-1, x.shape[-1]).float(), y.view(-1))
        return (x, new) if caches is not None else x


class Bottleneck(nn.Module):
    def __init__(s, i, m, st=1):
        super().__init__()
        o = m * 4
        s.c1 = nn.Conv2d(i, m, 1, bias=False)
        s.b1 = nn.BatchNorm2d(m)
        s.c2 = nn.Conv2d(m, m, 3, st, 1, bias=False)
        s.b2 = nn.BatchNorm2d(m)
        s.c3 = nn.Conv2d(m, o, 1, bias=False)
        s.b3 = nn.BatchNorm2d(o)
        s.relu = nn.ReLU()
        s.down = nn.Sequential(nn.Conv2d(i, o, 1, st, bias=False), nn.BatchNorm2d(o)) if st != 1 or i != o else None

    def forward(s, x):
        y = s.relu(s.b1(s.c1(x)))
        y = s.relu(s.b2(s.c2(y)))
        y = s.b3(s.c3(y))
        return s.relu(y + (s.down(x) if s.down else x))


class ResNet(nn.Module):
    def __init__(s, layers=(3, 4, 6, 3)):
        super().__init__()
        s.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        s.bn1 = nn.BatchNorm2d(64)
        s.relu = nn.ReLU()
        s.pool = nn.MaxPool2d(3, 2, 1)
        L = []
        i = 64
        for j, n in enumerate(layers):
            for k in range(n):
                L.append(Bottleneck(i, 64 * 2**j, 2 if k == 0 and j else 1))
                i = 256 * 2**j
        s.layers = nn.Sequential(*L)
        s.fc = nn.Linear(2048, 1000)

    def forward(s, x, y=None):
        x = s.fc(s.layers(s.pool(s.relu(s.bn1(s.conv1(x))))).mean((2, 3)))
        return F.cross_entropy(x.float(), y) if y is not None else x


class UNet(nn.Module):
    def __init__(s, c=320, n=8):
        super().__init__()
        s.inp = nn.Conv2d(4, c, 3, 1, 1)
        s.res = nn.ModuleList(
            nn.ModuleDict(
                {
                    "n1": nn.GroupNorm(32, c),
                    "c1": nn.Conv2d(c, c, 3, 1, 1),
                    "n2": nn.GroupNorm(32, c),
                    "c2": nn.Conv2d(c, c, 3, 1, 1),
                    "t": nn.Linear(1280, c),
                }
            )
            for _ in range(n)
        )
        s.att = nn.ModuleList(Block(c, 8, causal=False) for _ in range(n))
        s.out = nn.Conv2d(c, 4, 3, 1, 1)

    def forward(s, x, t, y=None):
        x = s.inp(x)
        for r, a in zip(s.res, s.att, strict=False):
            h = r.c1(F.silu(r.n1(x)))
            h = h + r.t(F.silu(t))[:, :, None, None]
            x = x + r.c2(F.silu(r.n2(h)))
            B, C, H, W = x.shape
            x = a(x.reshape(B, C, H * W).transpose(1, 2)).transpose(1, 2).reshape(B, C, H, W)
        x = s.out(x)
        return F.mse_loss(x.float(), y.float()) if y is not None else x


def optstep(params, kind="foreach", name="AdamW", nparam=None):
    ps = list(params)
    n = len(ps)
    by = sum(p.numel() for p in ps) * 4
    with rf(f"Optimizer.step#{name}.step"):
        if kind == "fused":
            with op("aten::_fused_adamw_"):
                for _ in range(math.ceil(n / 30)):
                    kern(
                        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>, float const*, double, double, double, double, double, bool, bool, float const*, float const*>(...)",
                        by * 4 / 3e12 * 1e6 / math.ceil(n / 30) + 2,
                    )
        elif kind == "foreach":
            for o in (
                "_foreach_add_",
                "_foreach_mul_",
                "_foreach_lerp_",
                "_foreach_mul_",
                "_foreach_addcmul_",
                "_foreach_sqrt",
                "_foreach_div_",
                "_foreach_add_",
                "_foreach_addcdiv_",
            ):
                with op("aten::" + o):
                    for _ in range(math.ceil(n / 40)):
                        kern(
                            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<2>, at::native::(anonymous namespace)::BinaryOpScalarFunctor<float, 2, 1, 1>, std::multiplies<float>, float>(...)",
                            by * (2.3 if "c" in o or "l" in o else 2) / 2.9e12 * 1e6 / math.ceil(n / 40) + 2,
                        )
        else:
            for p in ps:
                for o in ("mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div", "add_", "addcdiv_"):
                    with op("aten::" + o):
                        kern(
                            "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int, at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul>)",
                            p.numel() * 4 * 2.5 / 2.8e12 * 1e6 + 1.6,
                        )


def nothing(*a):
    pass


def loop(n, body, ann=True, first=5, between=nothing):
    def go(p):
        for i in range(n):
            with rf(f"ProfilerStep#{first + i}") if ann else nullcontext():
                between(i) if False else None
                body(i)
            between(i)

    return go


class Loader:
    def __init__(s, ms, workers=False):
        s.ms = ms
        s.workers = workers

    def __next__(s):
        return s.fetch()

    def fetch(s):
        with rf(
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            if s.workers
            else "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        ):
            if s.ms:
                if s.workers:
                    host(s.ms * 1000)
                else:
                    for _ in range(8):
                        with op("aten::stack"):
                            host(s.ms * 125)


CACHE = {}


def model_step(key, make, inputs, stack=False, named=False, loss=None):
    """forward and backward, recorded once"""
    k = (key, stack, named)
    if k not in CACHE:
        model = make() if callable(make) and not isinstance(make, nn.Module) else make
        w = (lambda n: rf(n)) if named else (lambda n: nullcontext())

        def go(p=None):
            with w("forward"):
                found = model(*inputs) if loss is None else loss(model, *inputs)
            with w("backward"):
                found.backward()

        go()
        CACHE[k] = (record(go, stack), [p for p in model.parameters() if p.requires_grad])
    return CACHE[k]


def train(
    tree,
    ps,
    steps=4,
    opt="fused",
    data=None,
    copy=None,
    ann=True,
    after=nothing,
    before=nothing,
    post_bwd=nothing,
    named=False,
    between=nothing,
    first=5,
    frames=False,
    optann=True,
    zero=True,
):
    w = (lambda n: rf(n)) if named else (lambda n: nullcontext())
    f = (lambda n: py(n)) if frames else (lambda n: nullcontext())
    with paper() as root, f("train.py(212): main"):
        for i in range(steps):
            with rf(f"ProfilerStep#{first + i}") if ann else nullcontext():
                if data:
                    with f("torch/utils/data/dataloader.py(733): __next__"):
                        data.fetch()
                before(i)
                if copy:
                    h2d(*copy)
                with f("train.py(120): training_step"):
                    splice(tree)
                post_bwd(i)
                with w("optimizer"), f("torch/optim/optimizer.py(517): wrapper"):
                    optstep(ps, opt)
                    if zero:
                        with rf("Optimizer.zero_grad#AdamW.zero_grad"):
                            host(30)
                after(i)
            between(i)
    return root


def ids(B, S):
    return torch.zeros(B, S, dtype=torch.long, device=M)


def build(f, d="bf16"):
    dt(d)
    with M:
        m = f()
    torch.set_default_dtype(torch.float32)
    return m


def rnd(*s, d=torch.bfloat16):
    return torch.zeros(*s, device=M, dtype=d)


def decode(model, B, P, steps, d, h, L, post=nothing, named=True, ann=None, key=None, between=nothing):
    dd = d // h
    with torch.no_grad():
        cc = []

        def pre(p=None):
            x, c = model(ids(B, P), caches=[(rnd(B, h, 0, dd), rnd(B, h, 0, dd))] * L)
            torch.argmax(x[:, -1], -1)
            cc[:] = c

        def one(p=None):
            x, _c = model(ids(B, 1), caches=cc)
            torch.argmax(x[:, -1], -1)

        k = ("dec", key, B, P)
        if k not in CACHE:
            CACHE[k] = (record(pre), record(one))
    pt, ot = CACHE[k]
    with paper() as root:
        with rf("prefill") if named else nullcontext():
            splice(pt)
        for i in range(steps):
            with rf("decode") if named else rf(ann % i) if ann else nullcontext():
                splice(ot)
                post(i)
            between(i)
    return root


def buckets(model, sizes, hook_at=None, group="default_pg", n=8):
    """DDP: all-reduce of a bucket once its gradients are there, from a hook of the backward"""
    bl = list(model.blocks) if hasattr(model, "blocks") else list(model.layers)
    for _i, b in enumerate(bl):
        by = sum(p.numel() * p.element_size() for p in b.parameters())

        def hook(mod, gi, go, by=by):
            nccl("all_reduce", by * sizes, False, n, group)

        b.register_full_backward_hook(hook)
    return model
