"""All rules, those that know a cause before those that know its effect: what one takes, no other speaks of."""

from __future__ import annotations

from functools import cache

from llm_perf_opt.analysis.rules import (
    attention_kernel,
    attention_repeat_kv,
    attention_replan,
    attention_unfused,
    cache_concat,
    cast_pingpong,
    comm_exposed,
    comm_skew,
    compile_again,
    compile_breaks,
    copy_host,
    copy_layout,
    copy_managed,
    copy_pinned,
    fuse_elementwise,
    gemm_align,
    gemm_fp32,
    gemm_old_kernel,
    gemm_shape,
    gpu_clocks,
    gpu_shared,
    host_alloc,
    host_data,
    host_graphs,
    host_python,
    host_sync,
    host_unknown,
    host_wait,
    kernel_slow,
    l1_bound,
    launch_graph,
    logits_all,
    loss_fp32,
    memory_bound,
    moe_loop,
    occupancy,
    only_warmup,
    optimizer_fused,
    recompute,
    sampling_host,
    serve_cache,
    serve_graph,
    serve_mixed,
    serve_schedule,
)
from llm_perf_opt.analysis.rules.rule import Rule, Words

RULES: tuple[Rule, ...] = tuple(
    module.RULE
    for module in (
        # Causes of waiting that show in operators, before what only gaps tell.
        sampling_host,
        moe_loop,
        optimizer_fused,
        compile_again,
        compile_breaks,
        attention_replan,
        host_data,
        host_alloc,
        host_sync,
        serve_schedule,
        serve_graph,
        host_graphs,
        launch_graph,
        host_python,
        comm_skew,
        host_wait,
        gpu_shared,
        only_warmup,
        host_unknown,
        copy_managed,
        copy_pinned,
        copy_host,
        comm_exposed,
        gpu_clocks,
        # Whole parts of a program that need not be, then kernels by what they do, then by how.
        recompute,
        logits_all,
        loss_fp32,
        cache_concat,
        attention_repeat_kv,
        attention_unfused,
        gemm_align,
        gemm_fp32,
        gemm_old_kernel,
        cast_pingpong,
        copy_layout,
        serve_cache,
        memory_bound,
        # What counters say of kernels for which no better cause is known.
        l1_bound,
        occupancy,
        fuse_elementwise,
        gemm_shape,
        attention_kernel,
        kernel_slow,
        # What takes nothing off the work itself.
        serve_mixed,
    )
)


@cache
def fix_words() -> dict[str, Words]:
    """By id, and by id and variant (`copy.host.unknown`)."""
    found = {rule.id: rule.words for rule in RULES}
    return found | {f"{rule.id}.{name}": words for rule in RULES for name, words in rule.variants.items()}
