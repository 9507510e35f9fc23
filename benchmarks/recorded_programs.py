"""Programs of `unseen/recorded.toml`, with what was planted in them."""

import torch

import recorded_models
from recorded_host import (
    Cfg,
    Sim,
    X,
    call,
    d2h,
    devsync,
    h2d,
    host,
    item,
    kern,
    nccl,
    op,
    paper,
    py,
    record,
    rf,
    run,
    splice,
    waitcomm,
    write,
)
from recorded_models import (
    CACHE,
    GPT,
    Loader,
    ResNet,
    UNet,
    buckets,
    build,
    decode,
    ids,
    model_step,
    optstep,
    rnd,
    train,
)

PROGRAMS = {}


def program(name):
    def known(made):
        PROGRAMS[name] = made
        return made

    return known


def simulate(name, folder):
    """The files of a program: one for each rank."""
    made = PROGRAMS[name]()
    made, options = made if isinstance(made, tuple) else (made, {})
    sims = made if isinstance(made, list) else [made]
    names = [f"rank{number}.json.gz" for number in range(len(sims))] if len(sims) > 1 else ["trace.json.gz"]
    return [write(sim, folder / own, **options) for sim, own in zip(sims, names, strict=True)]


def gpt(stack=False, named=False):
    return model_step("gpt2m", lambda: build(lambda: GPT(1024, 16, 8)), (ids(8, 1024), ids(8, 1024)), stack, named)


def gpt_small(stack=False, named=False):
    return model_step("gpt_s", lambda: build(lambda: GPT(256, 4, 6, V=8000)), (ids(4, 128), ids(4, 128)), stack, named)


def gpt_eager():
    return model_step(
        "gpt_e", lambda: build(lambda: GPT(1024, 16, 6, eager=True, drop=0.1)), (ids(8, 1024), ids(8, 1024))
    )


def gpt32():
    return model_step("gpt32", lambda: build(lambda: GPT(1024, 16, 6, eager=True), "fp32"), (ids(8, 512), ids(8, 512)))


def _rn(d):
    return lambda: model_step(
        "rn" + d,
        lambda: build(lambda: ResNet(), d),
        (
            rnd(128, 3, 224, 224, d={"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[d]),
            ids(1, 128)[0],
        ),
    )


rn32, rn16, rnf16 = _rn("fp32"), _rn("bf16"), _rn("fp16")


def unet():
    return model_step("unet", lambda: build(lambda: UNet()), (rnd(8, 4, 64, 64), rnd(8, 1280), rnd(8, 4, 64, 64)))


def bert(stack=False):
    return model_step(
        "bert",
        lambda: build(lambda: GPT(768, 12, 12, V=30522, T=512, causal=False)),
        (ids(16, 128), ids(16, 128)),
        stack,
    )


def one(root, **k):
    s = Sim(root, Cfg(**{"sync_end": True, **k}))
    run([s])
    return s


@program("gpt2 tuned")
def _():
    return one(train(*gpt(), steps=5), op_us=4)


@program("gpt2 tuned with stack")
def _():
    return one(train(*gpt(True), steps=3, frames=True), op_us=4, stack=True)


@program("gpt2 tuned, item each step at the end")
def _():
    return one(train(*gpt(), steps=5, after=lambda i: item()), op_us=2)


@program("resnet50 bf16 tuned, pinned workers")
def _():
    return one(train(*rn16(), steps=4, data=Loader(0.2, True), copy=(128 * 3 * 224 * 224 * 2, True)), op_us=4)


@program("resnet50 fp32 no tf32")
def _():
    return one(train(*rn32(), steps=3), op_us=4, gpu="A100")


@program("unet diffusion training tuned")
def _():
    return one(train(*unet(), steps=3), op_us=3)


@program("gpt eager attention with dropout")
def _():
    return one(train(*gpt_eager(), steps=3), op_us=4)


@program("gpt fp32 on H100")
def _():
    return one(train(*gpt32(), steps=3), op_us=4)


@program("resnet18-like, num_workers=0")
def _():
    return one(train(*rn16(), steps=4, data=Loader(150)), op_us=4)


@program("resnet workers too slow")
def _():
    return one(train(*rn16(), steps=4, data=Loader(90, True)), op_us=4)


@program("resnet workers every 8th batch slow")
def _():
    class L(Loader):
        n = 0

        def fetch(s):
            s.n += 1
            s.ms = 400 if s.n % 4 == 3 else 0.2
            super().fetch()

    return one(train(*rn16(), steps=8, data=L(0, True)), op_us=4)


@program("tiny gpt eager")
def _():
    return one(train(*gpt_small(), steps=6, opt="foreach"), op_us=6, launch_us=5)


@program("tiny gpt, loop optimizer")
def _():
    return one(train(*gpt_small(), steps=6, opt="loop"), op_us=6, launch_us=5)


@program("tiny gpt with stack and named stages")
def _():
    return one(
        train(*gpt_small(True, True), steps=4, opt="foreach", named=True, frames=True), op_us=5, stack=True, py_us=2
    )


@program("metrics on the host each step")
def _():
    return one(train(*bert(), steps=5, after=lambda i: (d2h(16 * 128 * 768 * 4), host(60000))), op_us=4)


@program("metrics on the host each step, stack")
def _():
    def m(i):
        d2h(16 * 128 * 768 * 4)
        with py("train.py(140): compute_metrics"), py("sklearn/metrics/_classification.py(1180): f1_score"):
            host(60000)

    return one(train(*bert(True), steps=3, after=m, frames=True), op_us=4, stack=True)


@program("tokenisation between steps")
def _():
    def b(i):
        with rf("tokenize"):
            host(50000)

    return one(train(*bert(), steps=5, before=b), op_us=4)


@program("logging every step, many items")
def _():
    return one(
        train(*gpt_small(), steps=6, opt="fused", after=lambda i: [(item(), host(300)) for _ in range(30)]), op_us=4
    )


@program("grad clipping with item")
def _():
    return one(train(*gpt(), steps=5, post_bwd=lambda i: item()), op_us=2)


@program("pageable copy of a large batch")
def _():
    return one(train(*gpt(), steps=5, copy=(300e6, False)), op_us=3)


@program("allocator churn")
def _():
    return one(
        train(*gpt(), steps=5, before=lambda i: [(call("cudaMalloc", 2500), call("cudaFree", 2500)) for _ in range(8)]),
        op_us=3,
    )


@program("gc pause every other step")
def _():
    return one(train(*gpt(), steps=6, before=lambda i: host(120000) if i % 2 else None), op_us=3)


@program("checkpoint save in one of the steps")
def _():
    def a(i):
        if i == 3:
            with rf("save_checkpoint"):
                d2h(400e6)
                host(2e6)

    return one(train(*gpt(), steps=6, after=a), op_us=3)


@program("only one step, the first (compile)")
def _():
    return one(
        train(
            *bert(),
            steps=1,
            before=lambda i: (call("cuModuleLoadData", 30000), host(3e6), call("cuLibraryLoadData", 900000), host(4e6)),
            first=0,
        ),
        op_us=4,
    )


@program("first step slow, others fine")
def _():
    return one(
        train(
            *gpt(),
            steps=6,
            before=lambda i: (call("cuLibraryLoadData", 1.2e6), host(2.8e6)) if i == 0 else None,
            first=0,
        ),
        op_us=3,
    )


def dec():
    return build(lambda: GPT(1024, 16, 8))


@program("decode eager")
def _():
    return one(decode(dec(), 1, 512, 12, 1024, 16, 8, key="g"), op_us=6, launch_us=5)


@program("decode eager no ranges")
def _():
    return one(decode(dec(), 1, 512, 12, 1024, 16, 8, key="g", named=False), op_us=6, launch_us=5)


@program("decode with item and detokenise")
def _():
    def p(i):
        item()
        host(25000)

    return one(decode(dec(), 1, 512, 12, 1024, 16, 8, key="g", post=p), op_us=5)


@program("prefill only, big")
def _():
    with torch.no_grad():
        m = build(lambda: GPT(2048, 16, 6, T=2048))
        r = record(lambda p: m(ids(16, 2048)))
    with paper() as root:
        for _i in range(3):
            with rf("prefill"):
                splice(r)
    return one(root, op_us=4)


def graph_decode(
    n,
    host_us,
    gap_ann="execute_context_0(0)_generation_%d(%d)",
    L=24,
    d=4096,
    B=32,
    sample=True,
    post=lambda i: None,
    kus=18,
):
    with paper() as root:
        for i in range(n):
            with rf(gap_ann % (B, B) if "%d" in gap_ann else gap_ann):
                for _ in range(3):
                    h2d(256 * 8, True)
                with op("aten::copy_"):
                    kern("void at::native::elementwise_kernel<128, 4, at::native::direct_copy>(int)", 1.5)
                with py("vllm/compilation/cuda_graph.py(150): __call__"):
                    X.m("graph")
                    for _l in range(L):
                        kern(
                            "void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*, c10::BFloat16 const*, c10::BFloat16 const*, float, int, int)",
                            2.2,
                        )
                        kern("nvjet_tst_64x32_64x16_1x4_h_bz_TNT", kus * 1.2)
                        kern(
                            "void flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, cute::C<1>, cute::tuple<cute::C<128>, cute::C<128>, cute::C<128> > > >",
                            kus * 0.8,
                        )
                        kern("nvjet_tst_64x32_64x16_1x4_h_bz_TNT", kus * 0.6)
                        kern(
                            "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long, c10::BFloat16*, c10::BFloat16 const*, float, int, int)",
                            2.4,
                        )
                        kern("nvjet_tst_64x32_64x16_1x4_h_bz_TNT", kus * 3)
                        kern(
                            "void vllm::act_and_mul_kernel<c10::BFloat16, &(c10::BFloat16 vllm::silu_kernel<c10::BFloat16>(c10::BFloat16 const&)), true>(c10::BFloat16*, c10::BFloat16 const*, int)",
                            2.5,
                        )
                        kern("nvjet_tst_64x32_64x16_1x4_h_bz_TNT", kus * 1.6)
                    X.m("endgraph")
                if sample:
                    with op("aten::mm"):
                        kern("nvjet_tst_64x64_64x16_1x2_h_bz_TNT", 120)
                    with op("aten::argmax"):
                        kern(
                            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, 4> >(at::native::ReduceOp<float>)",
                            14,
                        )
                    d2h(B * 4)
            host(host_us)
            post(i)
    return root


@program("vllm decode, graphs, tuned")
def _():
    return one(graph_decode(14, 250), gpu="H100")


@program("vllm decode, graphs, scheduler slow")
def _():
    return one(graph_decode(14, 12000), gpu="H100")


@program("vllm decode, graphs, small gap")
def _():
    return one(graph_decode(14, 1000), gpu="H100")


def fsdp_tree(L=8, d=2048, n=8, overlap=True, B=8, S=1024, bs=1.0, sync=True, group="default_pg"):
    k = ("fsdp", L, d, overlap, B, S, bs, group, n)
    if k in CACHE:
        return CACHE[k]
    m = build(lambda: GPT(d, 16, L))
    by = sum(p.numel() * 2 for p in m.blocks[0].parameters()) * bs

    # forward: all-gather of the next block (overlap) or of this one (exposed)
    def hook(i, b):
        if overlap:
            waitcomm()
            nccl("all_gather", by, False, n, group)
        else:
            nccl("all_gather", by, True, n, group)

    m.hook = hook
    for b in m.blocks:

        def bh(mod, gi, go):
            nccl("all_gather", by, not overlap, n, group)
            nccl("reduce_scatter", by, not overlap, n, group)

        b.register_full_backward_hook(bh)

    def go(p=None):
        m(ids(B, S), ids(B, S)).backward()

    go()
    CACHE[k] = (record(go), list(m.parameters())[: len(list(m.parameters())) // 1])
    return CACHE[k]


def ranks(trees, path, cfgs, **k):
    sims = [
        Sim(
            t, Cfg(sync_end=True, world=len(trees) if len(trees) > 1 else 8, rank=i, **{"op_us": 3, "seed": i + 1, **c})
        )
        for i, (t, c) in enumerate(zip(trees, cfgs, strict=False))
    ]
    run(sims)
    return sims


@program("fsdp overlapped, one rank")
def _():
    t, ps = fsdp_tree()
    r = train(t, list(ps)[:8], steps=3, post_bwd=lambda i: waitcomm())
    return ranks([r], "", [{}])


@program("fsdp exposed slow network, one rank")
def _():
    t, ps = fsdp_tree(overlap=False, group="net_pg", d=1024, S=512)
    r = train(t, ps[:8], steps=3, post_bwd=lambda i: waitcomm())
    return ranks([r], "", [{}])


def ddp_tree(net=False, stack=False, d=1024, L=8, S=1024, n=4):
    k = ("ddp", net, d, L, S, n)
    if k not in CACHE:
        m = build(lambda: GPT(d, 16, L))
        buckets(m, 1, group="net" if net else "default_pg", n=n)

        def go(p=None):
            m(ids(8, S), ids(8, S)).backward()

        go()
        CACHE[k] = (record(go), list(m.parameters()))
    return CACHE[k]


@program("ddp 4 ranks, balanced")
def _():
    t = ddp_tree()
    r = train(*t, steps=3, post_bwd=lambda i: waitcomm())
    return ranks([r] * 4, "", [{"clock": i * 3e5} for i in range(4)])


@program("ddp 4 ranks, rank 2 has a slow loader")
def _():
    t = ddp_tree()
    rs = [train(*t, steps=4, post_bwd=lambda i: waitcomm(), data=Loader(60 if k == 2 else 0.3, True)) for k in range(4)]
    return ranks(rs, "", [{"clock": 0} for i in range(4)])


@program("ddp 4 ranks, rank 1 slow GPU")
def _():
    t = ddp_tree()
    r = train(*t, steps=4, post_bwd=lambda i: waitcomm())
    return ranks([r] * 4, "", [{"gpu_slow": 1.5 if i == 1 else 1} for i in range(4)])


@program("ddp 2 ranks slow network")
def _():
    t = ddp_tree(net=True, d=2048, S=256)
    r = train(*t, steps=3, post_bwd=lambda i: waitcomm(), opt="fused")
    return ranks([r] * 2, "", [{}, {}])


@program("ddp one rank of 8 that waits")
def _():
    t = ddp_tree()
    rs = [train(*t, steps=4, post_bwd=lambda i: waitcomm(), data=Loader(80 if k == 1 else 0.3, True)) for k in range(2)]
    s = ranks(rs, "", [{}, {}])[:1]
    s[0].c.world = 8
    return s


@program("megatron TP4 all ranks")
def _():
    recorded_models.TP = 4
    try:
        t = model_step("tp4", lambda: build(lambda: GPT(1024, 16, 6)), (ids(8, 1024), ids(8, 1024)))
    finally:
        recorded_models.TP = 0
    return ranks([train(*t, steps=3)] * 4, "", [{} for i in range(4)])


@program("2020 schema, launch bound")
def _():
    return one(train(*gpt_small(), steps=5, opt="loop"), op_us=8, launch_us=6, old=2020, gpu="V100"), {}


@program("2022 schema, tuned resnet on V100")
def _():
    return one(train(*rnf16(), steps=3, opt="foreach"), op_us=5, old=2022, gpu="V100")


@program("cpu only training")
def _():
    return one(train(*gpt_small(), steps=3), op_us=30), {
        "drop": lambda e: e["cat"] in ("kernel", "gpu_memcpy", "cuda_runtime", "cuda_driver", "gpu_user_annotation")
    }


@program("gpu activities only, tuned")
def _():
    return one(train(*gpt(), steps=4), op_us=3), {"drop": lambda e: e["cat"] not in ("kernel", "gpu_memcpy")}


@program("gpu activities only, idle")
def _():
    return one(train(*gpt_small(), steps=5, before=lambda i: host(20000)), op_us=6), {
        "drop": lambda e: e["cat"] not in ("kernel", "gpu_memcpy")
    }


@program("cpu side and launches, no kernels")
def _():
    return one(train(*gpt(), steps=3), op_us=3), {
        "drop": lambda e: e["cat"] in ("kernel", "gpu_memcpy", "gpu_user_annotation")
    }


@program("record_function everywhere, launch bound")
def _():
    return one(train(*gpt_small(False, True), steps=5, opt="loop", named=True), op_us=7)


@program("forward backward named, no steps, tuned")
def _():
    return one(
        train(
            *model_step("gpt2m", lambda: build(lambda: GPT(1024, 16, 8)), (ids(8, 1024), ids(8, 1024)), False, True),
            steps=4,
            named=True,
            ann=False,
        ),
        op_us=3,
    )


@program("embedding server, idle between requests")
def _():
    with torch.no_grad():
        m = build(lambda: GPT(768, 12, 12, V=30522, T=512, causal=False))
        r = record(lambda p: m(ids(64, 256)))
    with paper() as root:
        for _i in range(8):
            with rf("encode_batch"):
                h2d(64 * 256 * 8, False)
                splice(r)
                d2h(64 * 768 * 4)
            with py("queue.py(154): get"), py("threading.py(295): wait"):
                host(60000)
    return one(root, op_us=3, stack=True)


def inductor_names(n):
    if "vectorized" in n or "elementwise" in n:
        return "triton_poi_fused_add_gelu_mul_3"
    if "layer_norm" in n:
        return "triton_per_fused__to_copy_add_native_layer_norm_5"
    if "SoftMax" in n:
        return "triton_red_fused__log_softmax_nll_loss_forward_9"
    return n


@program("torch.compile training, tuned")
def _():
    s = Sim(train(*gpt(), steps=4), Cfg(op_us=3, sync_end=True))
    s.rename = inductor_names
    run([s])
    return s


@program("2 hosts item each step, rank 3 slow loader, clocks apart")
def _():
    t = ddp_tree()
    rs = [
        train(
            *t, steps=4, post_bwd=lambda i: waitcomm(), after=lambda i: item(), data=Loader(50 if k == 3 else 0.3, True)
        )
        for k in range(4)
    ]
    return ranks(rs, "", [{"clock": 1.3e6 if i > 1 else 0} for i in range(4)])


@program("ddp all loaders slow alike")
def _():
    t = ddp_tree()
    rs = [
        train(*t, steps=4, post_bwd=lambda i: waitcomm(), after=lambda i: item(), data=Loader(70, True))
        for k in range(4)
    ]
    return ranks(rs, "", [{} for i in range(4)])


@program("pipeline of two stages, second busier")
def _():
    a = model_step("pp0", lambda: build(lambda: GPT(1024, 16, 3)), (ids(8, 1024), ids(8, 1024)))
    b = model_step("pp1", lambda: build(lambda: GPT(1024, 16, 8)), (ids(8, 1024), ids(8, 1024)))

    def st(t, first):
        with paper() as root:
            for i in range(4):
                with rf(f"ProfilerStep#{i + 3}"):
                    if first:
                        splice(t[0])
                        nccl("send", 33e6, True, 2, "pp")
                        nccl("recv", 33e6, True, 2, "pp")
                        optstep(t[1][:20], "fused")
                        item()
                    else:
                        nccl("recv", 33e6, True, 2, "pp")
                        splice(t[0])
                        nccl("send", 33e6, True, 2, "pp")
                        optstep(t[1][:20], "fused")
                        item()
        return root

    return ranks([st(a, True), st(b, False)], "", [{}, {}])


@program("speculative decoding, eager draft")
def _():
    decode(build(lambda: GPT(1024, 16, 8)), 8, 512, 1, 1024, 16, 8, key="g8")
    ot = CACHE[("dec", "g8", 8, 512)][1]
    g = graph_decode(1, 100)
    with paper() as root:
        for _i in range(6):
            with rf("spec_step"):
                with rf("draft"):
                    for _ in range(4):
                        splice(ot)
                with rf("verify"):
                    splice(g)
    return one(root, op_us=5, launch_us=5)


@program("diffusion inference, 20 steps, batch 8")
def _():
    with torch.no_grad():
        m = build(lambda: UNet())
        r = record(lambda p: m(rnd(8, 4, 64, 64), rnd(8, 1280)))
    with paper() as root:
        for _i in range(12):
            with rf("denoise_step"):
                splice(r)
                host(150)
    return one(root, op_us=3)


@program("diffusion inference, batch 1, small latents, item per step")
def _():
    with torch.no_grad():
        m = build(lambda: UNet(320, 8))
        r = record(lambda p: m(rnd(1, 4, 16, 16), rnd(1, 1280)))
    with paper() as root:
        for _i in range(12):
            with rf("denoise_step"):
                splice(r)
                item()
    return one(root, op_us=6, launch_us=5)


@program("gradient checkpointing")
def _():
    def mk():
        m = build(lambda: GPT(1024, 16, 8))
        m.ckpt = True
        return m

    return one(train(*model_step("gptck", mk, (ids(8, 1024), ids(8, 1024))), steps=3), op_us=4)


def moe(tokens=2048, d=1024, E=16, L=4, sync=True, it=None):
    with paper() as root:
        for s in range(6):
            with rf(f"ProfilerStep#{s + 2}"):
                for layer in range(L):
                    with py(f"nn.Module: MoE_{layer}"):
                        with op("aten::topk"):
                            kern(
                                "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(at::cuda::detail::TensorInfo<float const, unsigned int>, unsigned int)",
                                9,
                            )
                        for _e in range(E):
                            with op("aten::nonzero"):
                                kern("void at_cuda_detail::cub::DeviceReduceSingleTileKernel<bool>(bool)", 2.2)
                                if sync:
                                    item()
                                kern("void at_cuda_detail::cub::DeviceSelectSweepKernel<long>(long)", 2.6)
                            with op("aten::index"):
                                kern(
                                    "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel>(long)",
                                    4,
                                )
                            for _k in range(3):
                                with op("aten::mm"):
                                    kern("nvjet_tst_128x128_64x6_2x1_v_bz_TNT", 9)
                            with op("aten::silu"):
                                kern(
                                    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)>(int)",
                                    2,
                                )
                            with op("aten::index_add_"):
                                kern("void at::native::indexFuncLargeIndex<c10::BFloat16, long>(c10::BFloat16)", 4)
                            host(40)
    return root


@program("moe loop over experts with nonzero")
def _():
    return one(moe(), op_us=5)


@program("cuda_sync events, tuned")
def _():
    return one(train(*gpt(), steps=5, after=lambda i: item()), op_us=3, sync_events=True)


@program("cuda_sync events, loader")
def _():
    return one(train(*gpt(), steps=5, after=lambda i: item(), data=Loader(60, True)), op_us=3, sync_events=True)


@program("profiler overhead in the middle")
def _():
    return one(
        train(
            *gpt(),
            steps=6,
            before=lambda i: (
                (devsync(), X.m("overhead Buffer_Flush 22000"), X.m("overhead Activity_Buffer_Request 8000"))
                if i in (2, 4)
                else None
            ),
        ),
        op_us=3,
    )


@program("rl loop: rollout, reward, train")
def _():
    decode(build(lambda: GPT(1024, 16, 8)), 8, 512, 1, 1024, 16, 8, key="g8")
    ot = CACHE[("dec", "g8", 8, 512)][1]
    t = gpt()
    with paper() as root:
        for _i in range(3):
            with rf("rollout"):
                for _ in range(60):
                    splice(ot)
            with rf("reward"):
                host(2000)
            with rf("train"):
                splice(t[0])
                optstep(t[1], "fused")
                item()
    return one(root, op_us=6, launch_us=5)


@program("user range on the host, no stack")
def _():
    def a(i):
        with rf("update_replay_buffer"):
            host(45000)

    return one(train(*bert(), steps=5, after=a), op_us=4)


@program("zero-offload: Adam on the host")
def _():
    def a(i):
        d2h(200e6, True)
        devsync()
        with rf("DeepSpeedCPUAdam.step"):
            with op("aten::lerp_"):
                host(90000)
            with op("aten::addcdiv_"):
                host(90000)
        h2d(200e6, True)
        devsync()

    return one(train(*gpt(), steps=4, opt="fused", post_bwd=a), op_us=4)


@program("recompilation each step")
def _():
    def b(i):
        with rf(f"Torch-Compiled Region: 0/{i}"), rf("_compile.compile_inner (dynamo_timed)"):
            host(200000)
            with rf("OutputGraph.call_user_compiler (dynamo_timed)"), rf("inductor_compile (dynamo_timed)"):
                host(600000)
                call("cuModuleLoadData", 900)

    return one(train(*bert(), steps=5, before=b), op_us=4)


@program("gemm with vocabulary of 50257")
def _():
    return one(
        train(
            *model_step("gptv", lambda: build(lambda: GPT(768, 12, 2, V=50257)), (ids(8, 1024), ids(8, 1024))), steps=4
        ),
        op_us=3,
        gpu="A100",
    )


@program("decode with torch.cat cache, batch 64")
def _():
    return one(decode(build(lambda: GPT(2048, 16, 6, T=4096)), 64, 2048, 6, 2048, 16, 6, key="gcat"), op_us=4)


@program("prefetch on a side stream, tuned")
def _():
    return one(train(*gpt(), steps=5, before=lambda i: X.m("async_h2d 100000000")), op_us=3)


@program("amp fp16 with scaler, V100")
def _():
    return one(
        train(
            *model_step("gptf16", lambda: build(lambda: GPT(1024, 16, 6), "fp16"), (ids(8, 512), ids(8, 512))),
            steps=4,
            post_bwd=lambda i: item(),
            opt="foreach",
        ),
        op_us=4,
        gpu="V100",
    )


@program("microbenchmark of one matmul")
def _():
    r = record(lambda p: [rnd(8192, 8192) @ rnd(8192, 8192) for _ in range(60)])
    return one(r, op_us=4)


@program("moe all-to-all exposed, one rank")
def _():
    gpt()
    with paper() as root:
        for i in range(4):
            with rf(f"ProfilerStep#{i}"):
                for _l in range(8):
                    with op("aten::mm"):
                        kern("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", 400)
                    nccl("all_to_all", 250e6, True, 8, "ep")
                    with op("aten::_grouped_mm"):
                        kern(
                            "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<cute::tuple<int, int, int> > > > >",
                            500,
                        )
                    nccl("all_to_all", 250e6, True, 8, "ep")
    return ranks([root], "", [{}])


@program("2021 schema, loader")
def _():
    return one(train(*rnf16(), steps=4, data=Loader(120)), op_us=6, old=2020, gpu="V100")


@program("vision transformer, evaluation with metrics on the GPU")
def _():
    with torch.no_grad():
        m = build(lambda: GPT(1024, 16, 12, causal=False))
        r = record(lambda p: torch.argmax(m(ids(64, 197))[:, -1], -1))
    with paper() as root:
        for _i in range(4):
            with rf("eval_batch"):
                splice(r)
        item()
    return one(root, op_us=4)


@program("half host python with stack, half launch")
def _():
    def b(i):
        with py("train.py(77): augment"), py("numpy/core/fromnumeric.py(3504): mean"):
            host(8000)

    return one(train(*gpt_small(True), steps=4, before=b, opt="foreach", frames=True), op_us=5, stack=True, py_us=2)


@program("first two steps compile, three steady")
def _():
    return one(
        train(
            *gpt(),
            steps=5,
            first=0,
            before=lambda i: (call("cuModuleLoadDataEx", 40000), host([6e6, 3e6][i])) if i < 2 else None,
        ),
        op_us=3,
    )


@program("lightning names, loader")
def _():
    t = gpt()
    with paper() as root, rf("[pl][profile]run_training_epoch"):
        for _i in range(5):
            next_ = rf("[pl][profile][_TrainingEpochLoop].train_dataloader_next")
            with next_, rf("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
                host(70000)
            with rf("[pl][profile]run_training_batch"):
                with rf("[pl][profile][LightningModule]GPT.training_step"):
                    splice(t[0])
                with rf("[pl][profile][LightningModule]GPT.optimizer_step"):
                    optstep(t[1], "fused")
            with rf("[pl][profile][Callback]TQDMProgressBar.on_train_batch_end"):
                item()
    return one(root, op_us=4)


@program("progress bar and logging callback slow")
def _():
    t = gpt()
    with paper() as root:
        for _i in range(5):
            with rf("[pl][profile]run_training_batch"):
                splice(t[0])
                optstep(t[1], "fused")
            with rf("[pl][profile][Callback]WandbCallback.on_train_batch_end"):
                item()
                host(40000)
    return one(root, op_us=4)


@program("iterations without profiler steps, named iteration N")
def _():
    t = gpt()
    with paper() as root:
        for i in range(6):
            with rf(f"iteration {i}"):
                splice(t[0])
                optstep(t[1], "fused")
                item()
    return one(root, op_us=3)


@program("no annotation at all, training, tuned")
def _():
    return one(train(*gpt(), steps=4, ann=False), op_us=3)


@program("no annotation at all, training, loader")
def _():
    return one(train(*gpt(), steps=4, ann=False, data=Loader(80, True)), op_us=3)


@program("no annotation, stack, tiny model")
def _():
    return one(train(*gpt_small(True), steps=4, ann=False, opt="foreach", frames=True), op_us=5, stack=True, py_us=2)


@program("capture begins and ends inside a step")
def _():
    return one(train(*gpt(), steps=6, after=lambda i: item()), op_us=3), {"begin": 35000, "end": 120000}


@program("python is slow everywhere (interpreter-bound)")
def _():
    return one(train(*bert(), steps=4, opt="foreach"), op_us=14, launch_us=9)


@program("host just slower than GPU")
def _():
    return one(train(*bert(), steps=4), op_us=3.0, launch_us=4)


@program("two GPUs of one process (DataParallel)")
def _():
    s = one(train(*gpt(), steps=3), op_us=3)
    s2 = one(train(*gpt(), steps=3), op_us=3, device=1)
    for e in s2.ev:
        a = e["args"]
        if "correlation" in a:
            a["correlation"] += 10**6
        if "External id" in a:
            a["External id"] += 10**6
        if e["pid"] == s2.MAIN:
            e["tid"] += 11
    s2.pending_ann.clear()
    s.ev += [e for e in s2.ev if e["cat"] != "user_annotation"]
    return s


def serve(n, gap, idle_py, new_tokens_ann="step[DECODE bs=%d]", bs=16, stream_ev=None, kus=10, mixed=False):
    with paper() as root:
        for i in range(n):
            with py("sglang/srt/managers/scheduler.py(900): event_loop_overlap"):
                with py(idle_py):
                    host(gap)
                with rf("step[EXTEND bs=1 toks=2048]" if mixed and i % 5 == 0 else new_tokens_ann % bs):
                    if mixed and i % 5 == 0:
                        for _l in range(60):
                            with op("aten::mm"):
                                kern("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", 300)
                    else:
                        X.m("graph")
                        for _l in range(30):
                            kern("nvjet_tst_64x32_64x16_1x4_h_bz_TNT", kus * 1.2)
                            kern(
                                "void flashinfer::BatchDecodeWithPagedKVCacheKernel<flashinfer::PosEncodingMode::kNone, 2u, 4u, 8u, 16u, 2u, 4u>(flashinfer::BatchDecodeParams)",
                                kus * 0.6,
                            )
                            kern("nvjet_tst_64x32_64x16_1x4_h_bz_TNT", kus * 2)
                        X.m("endgraph")
                item()
    return root


@program("sglang decode, scheduler 6 ms of python per step")
def _():
    return one(serve(30, 6000, "sglang/srt/managers/scheduler.py(1200): get_next_batch_to_run"), stack=True)


@program("sglang decode, tuned")
def _():
    return one(serve(40, 40, "sglang/srt/managers/scheduler.py(1200): get_next_batch_to_run"), stack=True)


@program("sglang idle, waits for requests")
def _():
    return one(serve(14, 50000, "zmq/sugar/socket.py(800): recv_pyobj"), stack=True)


@program("sglang mixed prefill and decode, tuned")
def _():
    return one(serve(40, 40, "sglang/srt/managers/scheduler.py(1200): get_next_batch_to_run", mixed=True), stack=True)


@program("ddp without overlap: one all-reduce at the end, 2 ranks")
def _():
    t = gpt()
    r = train(*t, steps=4, post_bwd=lambda i: (nccl("all_reduce", 210e6, True, 2),))
    return ranks([r] * 2, "", [{}, {}])


@program("ddp all-reduce at the end over a slow network, 2 ranks")
def _():
    t = gpt()
    r = train(*t, steps=4, post_bwd=lambda i: (nccl("all_reduce", 400e6, True, 2, "net"),))
    return ranks([r] * 2, "", [{}, {}])


@program("one rank, small barrier all-reduces and large gradient buckets")
def _():
    t = gpt()

    def p(i):
        for _ in range(16):
            nccl("all_reduce", 8, True, 8, "net")
        nccl("all_reduce", 400e6, True, 8, "net")

    return ranks([train(*t, steps=4, post_bwd=p)], "", [{}])


@program("one rank, old schema without message sizes, even collectives")
def _():
    t, ps = fsdp_tree(overlap=False, group="net_pg", d=1024, S=512)
    r = train(t, ps[:8], steps=3, post_bwd=lambda i: waitcomm())
    return ranks([r], "", [{"old": 2022, "gpu": "A100"}])


@program("8 ranks, two nodes, second node late")
def _():
    t = ddp_tree(L=4, n=8)
    rs = [
        train(*t, steps=4, post_bwd=lambda i: waitcomm(), after=lambda i: item(), data=Loader(45 if k > 3 else 2, True))
        for k in range(8)
    ]
    return ranks(rs, "", [{"clock": 2e6 if k > 3 else 0} for k in range(8)])


@program("3 ranks, rank 0 saves a checkpoint once")
def _():
    t = ddp_tree()

    def a(k):
        def f(i):
            item()
            if k == 0 and i == 2:
                with rf("save_checkpoint"):
                    d2h(300e6)
                    host(1.5e6)

        return f

    rs = [train(*t, steps=6, post_bwd=lambda i: waitcomm(), after=a(k)) for k in range(3)]
    return ranks(rs, "", [{} for k in range(3)])


@program("V100 fp16 resnet, cuDNN relu kernels")
def _():
    s = Sim(train(*rnf16(), steps=3), Cfg(op_us=4, sync_end=True, gpu="V100"))
    s.rename = lambda n: n.replace("_fprop_", "_relu_")
    run([s])
    return s


@program("triton autotuning in the first step")
def _():
    def b(i):
        if i == 0:
            with py("triton/runtime/autotuner.py(160): run"):
                for k in range(300):
                    kern(f"triton_tem_fused_mm_{k % 20}", 400)
                    host(7000)
                    devsync()

    return one(train(*gpt(), steps=5, first=0, before=b), op_us=3)


@program("ranks late by turns")
def _():
    t = ddp_tree()

    def mk(k):
        def a(i):
            if i % 4 == k:
                for _ in range(30):
                    kern("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", 400)

        return a

    rs = [train(*t, steps=8, before=mk(k), post_bwd=lambda i: waitcomm(), after=lambda i: item()) for k in range(4)]
    return ranks(rs, "", [{} for k in range(4)])


@program("rank 0 evaluates on its GPU each step")
def _():
    t = ddp_tree()

    def a(i):
        for _ in range(30):
            kern("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", 400)

    rs = [
        train(
            *t, steps=5, before=a if k == 0 else (lambda i: None), post_bwd=lambda i: waitcomm(), after=lambda i: item()
        )
        for k in range(4)
    ]
    return ranks(rs, "", [{} for k in range(4)])


@program("time.sleep in the loop, stack")
def _():
    def b(i):
        with py("train.py(91): throttle"), py("<built-in function sleep>"):
            host(30000)

    return one(train(*bert(True), steps=3, before=b, frames=True), op_us=4, stack=True)


@program("one rank of 8, waits a little each time")
def _():
    t = ddp_tree()
    rs = [train(*t, steps=4, post_bwd=lambda i: waitcomm()) for k in range(2)]
    s = ranks(rs, "", [{"gpu_slow": 1.03}, {}])[:1]
    s[0].c.world = 8
    return s


@program("two steps, 4 ranks, rank 3 throttled")
def _():
    t = ddp_tree()
    r = train(*t, steps=2, post_bwd=lambda i: waitcomm(), after=lambda i: item())
    return ranks([r] * 4, "", [{"gpu_slow": 1.4 if i == 3 else 1} for i in range(4)])
