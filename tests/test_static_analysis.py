"""Counting stages of real models on the meta device: against torch's own counter, and against the formulas."""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.nn import functional  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from llm_perf_opt.static_analysis.architecture import Architecture, architecture_of  # noqa: E402
from llm_perf_opt.static_analysis.counting import EXPERTS_NOTE, count_stage  # noqa: E402
from llm_perf_opt.static_analysis.counts import ESTIMATED, MATRIX, MOVES_DATA, NOT_COUNTED, AttentionShape, StageCount  # noqa: E402
from llm_perf_opt.static_analysis.formulas import EXPERTS, HEAD, matrix_parameters  # noqa: E402
from llm_perf_opt.static_analysis.observe import observed_work  # noqa: E402
from llm_perf_opt.static_analysis.stage import StageWork, StaticStage  # noqa: E402
from llm_perf_opt.static_analysis.static_compute import analyse, analyse_session, as_json, write_static_compute  # noqa: E402
from llm_perf_opt.static_analysis.static_compute_md import render_markdown  # noqa: E402
from llm_perf_opt.static_analysis.static_result import StaticCompute  # noqa: E402

pytestmark = pytest.mark.torch

BF16 = torch.bfloat16


def model_of(name: str, dtype: Any = BF16, device: str = "meta", **fields: Any) -> tuple[Any, Any]:
    """A model of a type of transformers and its configuration, nothing loaded, nothing filled in."""
    config = transformers.AutoConfig.for_model(name, **fields)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    return model, config


def stages_of(model: Any, batch: int = 1, prompt: int = 200, steps: int = 16, **prefill: Any) -> list[StaticStage]:
    device = next(model.parameters()).device
    tokens = torch.zeros(batch, prompt, dtype=torch.long, device=device)
    last: dict[str, Any] = {}

    def run_prefill() -> None:
        last["out"] = model(tokens, use_cache=True, **({"logits_to_keep": 1} | prefill))

    def run_step() -> None:
        last["out"] = model(tokens[:, :1], past_key_values=last["out"].past_key_values, use_cache=True)

    return [StaticStage("prefill", run_prefill), StaticStage("decode", run_step, steps)]


def counted(run: Callable[[], Any]) -> StageCount:
    return count_stage(StaticStage("stage", run))


def empty(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.empty(*shape, dtype=dtype, device="meta")


def only(count: StageCount, operator: str) -> Any:
    (row,) = [row for row in count.operators if row.operator == operator]
    return row


# ------------------------------------------------------------------------------- counter, torch and formula

DENSE = {
    "llama": {"num_hidden_layers": 4},
    "qwen3": {"num_hidden_layers": 4},
    "mistral": {"num_hidden_layers": 4},
    "gpt2": {},
}


@pytest.mark.parametrize("name", DENSE)
def test_dense_models_torch_counter_ours_and_formula_agree(name: str) -> None:
    model, config = model_of(name, **DENSE[name])
    result = analyse(stages_of(model, batch=2), config)
    tokens = torch.zeros(2, 200, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as torchs, torch.inference_mode():
        model(tokens, logits_to_keep=1)
    prefill, decode = result.stages
    assert prefill.count.matrix_flops == torchs.get_total_flops() > 0
    for stage in (prefill, decode):
        assert stage.comparison is not None
        assert stage.comparison.flops_ratio == pytest.approx(1, abs=1e-3)
        assert stage.comparison.agrees
        assert all(part.ratio == pytest.approx(1, abs=1e-3) for part in stage.comparison.parts)
        assert stage.comparison.distinct_read_ratio == pytest.approx(1, abs=0.01)
        # earlier versions of transformers compute rotary angles as a small product in float32
        assert stage.matrix_flops_by_dtype["bfloat16"] > 0.999 * stage.count.matrix_flops
    assert (decode.work, prefill.work) == (
        StageWork(batch=2, new_tokens=1, cached_tokens=200, head_positions=1),
        StageWork(batch=2, new_tokens=200, cached_tokens=0, head_positions=1),
    )
    assert decode.total.matrix_flops_counter == 16 * decode.count.matrix_flops


TESTED = tomllib.loads(files("llm_perf_opt.static_analysis").joinpath("architectures.toml").read_text())
# default configurations of transformers that cannot be built or run as they are
FIELDS: dict[str, dict[str, Any]] = {
    "nemotron": {"num_key_value_heads": 8, "num_attention_heads": 48},
    "deepseek_v2": {"num_experts_per_tok": 6, "first_k_dense_replace": 1, "topk_group": 1, "n_group": 1},
    "bloom": {"hidden_size": 256, "n_layer": 2},
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of modules of transformers
@pytest.mark.parametrize("name", [*TESTED["plain_mlp"], *TESTED["gated_mlp"]])
def test_every_model_type_in_the_table_has_the_right_formula(name: str) -> None:
    if name == "deepseek_ocr2_text":
        pytest.skip("a part of a vision-language model, see the test of that")
    layers = {"n_layer": 5} if name in ("gpt_bigcode", "bloom") else {"num_hidden_layers": 5}
    if name not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {name}")
    model, config = model_of(name, **({**layers, **FIELDS.get(name, {})}))
    architecture = architecture_of(config)
    assert isinstance(architecture, Architecture)
    assert architecture.known
    for stage in analyse(stages_of(model, prompt=64), config).stages:
        if name == "opt" and "needs the values" in stage.count.failure:
            pytest.skip("OPT looks at values in earlier versions of transformers")
        assert stage.count.complete, stage.count.failure
        assert stage.comparison is not None, stage.no_formula
        assert stage.comparison.flops_ratio == pytest.approx(1, abs=1e-3), stage.comparison.parts
        # the counter takes as many experts as there are rows, the formula what even routing gives
        most = 1.05 if architecture.experts is None else 1.2
        assert stage.comparison.distinct_read_ratio is not None
        assert 0.99 < stage.comparison.distinct_read_ratio < most
    tables = 0 if not architecture.learned_positions else (config.max_position_embeddings + 2) * architecture.hidden
    parameters = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() > 1)
    assert matrix_parameters(architecture) + tables == pytest.approx(parameters, rel=2e-3)


def test_a_671_billion_parameter_model_in_seconds() -> None:
    began = time.process_time()
    model, config = model_of("deepseek_v3")
    result = analyse(stages_of(model, prompt=2048), config)
    assert time.process_time() - began < 60  # of processor time; about 5 s
    assert result.matrix_parameters == pytest.approx(671e9, rel=1e-3)
    prefill, decode = result.stages
    for stage in result.stages:
        assert stage.comparison is not None
        assert stage.comparison.flops_ratio == pytest.approx(1, abs=1e-3)
    assert prefill.formula is not None
    # 37 billion parameters are active for a token; keys and values of the context come on top
    assert decode.count.matrix_flops > 2 * 36e9
    assert prefill.count.matrix_flops / 2048 == pytest.approx(2 * 36.7e9, rel=0.15)


def test_the_three_billion_decoder_of_the_recordings() -> None:
    fields = {
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    }
    model, config = model_of("qwen3", **fields)
    began = time.process_time()
    result = analyse(stages_of(model, prompt=2048, logits_to_keep=0), config)
    assert time.process_time() - began < 20  # of processor time; about 1 s
    prefill, decode = result.stages
    assert result.matrix_parameters == pytest.approx(3.2e9, rel=0.01)
    assert prefill.total.matrix_flops_counter == pytest.approx(14.05e12, rel=0.03)  # measured on an H200
    assert prefill.total.matrix_flops_tensor_cores_estimate == pytest.approx(14.05e12, rel=0.03)
    assert decode.total.bytes_operator_by_operator == pytest.approx(107.7e9 + 5.4e9, rel=0.04)  # measured
    assert prefill.comparison is not None
    assert decode.comparison is not None
    assert any("counted in full" in sentence for sentence in prefill.comparison.explanations)
    assert any("8 times" in sentence for sentence in decode.comparison.explanations)
    assert any("aten.cat" in sentence for sentence in decode.comparison.explanations)


def test_on_the_cpu_the_same_is_counted_as_without_data() -> None:
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 100,
    }
    real, config = model_of("llama", torch.float32, "cpu", **sizes)
    meta, _ = model_of("llama", torch.float32, "meta", **sizes)
    for here, there in zip(stages_of(real), stages_of(meta), strict=True):
        with_data, without = count_stage(here), count_stage(there)
        assert with_data.matrix_flops == without.matrix_flops > 0
        assert with_data.attention == without.attention
        assert with_data.distinct_bytes_read == pytest.approx(without.distinct_bytes_read, rel=0.01)
    assert all(stage.comparison and stage.comparison.agrees for stage in analyse(stages_of(real), config).stages)


def test_a_network_of_convolutions_is_counted_and_has_no_formula() -> None:
    layers = torch.nn
    net = layers.Sequential(
        layers.Conv2d(3, 16, 3, padding=1),
        layers.BatchNorm2d(16),
        layers.ReLU(),
        layers.MaxPool2d(2),
        layers.Flatten(),
        layers.Linear(16 * 16 * 16, 10),
    )
    net = net.to("meta").eval()
    image = empty(4, 3, 32, 32)
    result = analyse([StaticStage("forward", lambda: net(image))], None)
    with FlopCounterMode(display=False) as torchs, torch.inference_mode():
        net(image)
    (stage,) = result.stages
    assert stage.count.matrix_flops == torchs.get_total_flops() == 2 * 4 * (32 * 32 * 27 * 16 + 4096 * 10)
    assert stage.formula is None
    assert "no transformers configuration" in stage.no_formula
    assert result.architecture is None
    assert "NO_CLOSED_FORMULA" in [diagnosis.code for diagnosis in result.diagnostics]
    assert not stage.count.treated(NOT_COUNTED)
    assert "No closed formula" in render_markdown(result)


# ------------------------------------------------------------------------------------------------- attention


@pytest.mark.parametrize(
    "kernel",
    [
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_fused_attention_overrideable",
        "_scaled_dot_product_attention_math",
        "_scaled_dot_product_flash_attention_for_cpu",
    ],
)
def test_attention_is_counted_once_whichever_kernel_it_is(kernel: str) -> None:
    q = empty(2, 4, 32, 16, dtype=BF16)
    run = getattr(torch.ops.aten, kernel)
    given: tuple[Any, ...] = ()
    if "efficient" in kernel or "cudnn" in kernel:
        given = (None, False)
    count = counted(lambda: run(q, q, q, *given))
    assert count.complete, count.failure
    assert count.matrix_flops == 2 * 2 * 4 * 32 * 32 * (16 + 16)
    assert count.matrix_flops_by_dtype().keys() == {"bfloat16"}
    assert [calls for _, calls in count.attention] == [1]


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("whole", [True, False])
def test_attention_with_fewer_key_heads(grouped: bool, whole: bool) -> None:
    q = empty(2, 8, 32, 16)
    k, v = empty(2, 2 if grouped else 8, 64, 16), empty(2, 2 if grouped else 8, 64, 24)

    def run() -> None:
        with torch.inference_mode(whole):  # outside of it torch takes attention apart before anyone can see it
            functional.scaled_dot_product_attention(q, k, v, enable_gqa=grouped)

    count = counted(run)
    assert count.matrix_flops == 2 * 2 * 8 * 32 * 64 * (16 + 24)
    assert bool(count.attention) == whole


def test_a_fused_kernel_reads_keys_once_and_keeps_scores_to_itself() -> None:
    q, k = empty(1, 8, 128, 16, dtype=BF16), empty(1, 2, 512, 16, dtype=BF16)
    count = counted(lambda: functional.scaled_dot_product_attention(q, k, k.clone(), enable_gqa=True))
    row = only(count, "aten.scaled_dot_product_attention")
    assert row.bytes_read == 2 * (8 * 128 * 16 + 2 * 2 * 512 * 16)
    assert row.bytes_written == 2 * 8 * 128 * 16
    assert row.estimated_flops == 5 * 8 * 128 * 512


def test_masks_are_told_apart() -> None:
    q = empty(1, 2, 128, 16)
    mask = empty(128, 128)
    masks = []
    for options in ({"is_causal": True}, {"attn_mask": mask}, {}):
        count = counted(lambda options=options: functional.scaled_dot_product_attention(q, q, q, **options))
        masks += [shape.mask for shape, _ in count.attention]
    assert masks == ["causal", "tensor", "none"]


def test_attention_taken_apart_by_the_model_agrees_too() -> None:
    model, config = model_of("llama", num_hidden_layers=2)
    model.set_attn_implementation("eager")
    for stage in analyse(stages_of(model, batch=2), config).stages:
        assert stage.comparison is not None, stage.no_formula
        assert stage.comparison.agrees
        assert not stage.count.attention
    whole, apart = (
        analyse(stages_of(m, prompt=1024), config).stages[0] for m in (model_of("llama", num_hidden_layers=2)[0], model)
    )
    assert whole.formula is not None
    assert apart.formula is not None
    assert apart.formula.flops("tensor_cores") > whole.formula.flops("tensor_cores")
    assert apart.count.bytes_read > whole.count.bytes_read


def test_sliding_windows_bound_the_cache_of_later_steps() -> None:
    model, config = model_of("mistral", num_hidden_layers=2, sliding_window=64)
    prefill, decode = analyse(stages_of(model, prompt=200), config).stages
    for stage in (prefill, decode):
        assert stage.comparison is not None
        assert stage.comparison.agrees
    assert [shape.keys for shape, _ in decode.count.attention] == [64]
    assert any("not told of a causal mask" in s for s in prefill.comparison.explanations)  # a mask tensor is passed


@pytest.mark.parametrize(("heads", "queries", "found"), [(32, 1, 1), (32, 5, 5), (8, 4, 1), (8, 5, None), (4, 8, None)])
def test_attention_whose_heads_are_packed_into_queries(heads: int, queries: int, found: int | None) -> None:
    """transformers 5.23 passes the four query heads of each key head as four queries of one head."""
    architecture = architecture_of(transformers.AutoConfig.for_model("mistral", num_hidden_layers=2))
    assert isinstance(architecture, Architecture)
    shape = AttentionShape("sdpa", "bfloat16", 3, heads, heads, queries, 64, 128, 128, "tensor")
    work = observed_work(StageCount("decode", 1, attention=[(shape, 2)]), architecture)
    assert (work and (work.batch, work.new_tokens, work.cached_tokens)) == (found and (3, found, 64 - found))


# --------------------------------------------------------------------------------------------------- experts


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_experts_are_counted_alike_in_all_forms(name: str) -> None:
    found = {}
    for form in ("grouped_mm", "batched_mm", "eager"):
        model, config = model_of(name, num_hidden_layers=2)
        model.set_experts_implementation(form)
        result = analyse(stages_of(model, prompt=64), config)
        for stage in result.stages:
            assert stage.comparison is not None, stage.no_formula
            assert stage.comparison.flops_ratio == pytest.approx(1, abs=1e-3)
            assert {p.part: p.ratio for p in stage.comparison.parts}[EXPERTS] == pytest.approx(1, abs=1e-3)
            assert (EXPERTS_NOTE in stage.count.notes) == (form == "eager")
        found[form] = result.stages
    flops = {form: [stage.count.matrix_flops for stage in stages] for form, stages in found.items()}
    assert flops["eager"] == flops["grouped_mm"] == flops["batched_mm"]
    # one token: the weights of the experts it was sent to, and no others
    grouped, batched = found["grouped_mm"][1].count, found["batched_mm"][1].count
    experts = config.num_experts_per_tok * 3 * config.hidden_size
    experts *= getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    assert only(grouped, "aten._grouped_mm").bytes_read == pytest.approx(2 * 2 * experts, rel=0.01)
    # batched_mm copies them first
    copied = [row for row in batched.operators if row.operator == "aten.index" and row.dtype == "bfloat16"]
    assert sum(row.bytes_written for row in copied) == pytest.approx(2 * 2 * experts, rel=0.01)


def test_the_forms_of_experts_are_as_before_after_counting() -> None:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    before = ALL_EXPERTS_FUNCTIONS.get_interface
    counted(lambda: 1 / 0)
    assert ALL_EXPERTS_FUNCTIONS.get_interface == before
    assert torch.autocast is torch.amp.autocast_mode.autocast


def test_a_vision_language_model_with_experts() -> None:
    if not hasattr(transformers, "DeepseekOcr2Config"):
        pytest.skip("this version of transformers has no DeepSeek-OCR-2")
    text = {
        "num_hidden_layers": 3,
        "hidden_size": 256,
        "num_attention_heads": 2,
        "intermediate_size": 512,
        "moe_intermediate_size": 128,
        "num_experts_per_tok": 6,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
    }
    encoder = {
        "num_hidden_layers": 2,
        "hidden_size": 896,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 512,
    }
    config = transformers.DeepseekOcr2Config(text_config=text, vision_config={"encoder_config": encoder})
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config, dtype=BF16).eval()
    page = empty(1, 3, 1024, 1024, dtype=BF16)
    vision = StaticStage("vision", lambda: model.model.get_image_features(page))
    seen, *language = analyse([vision, *stages_of(model)], config).stages
    assert seen.count.matrix_flops > 1e11
    assert seen.formula is None
    assert "deepseek_ocr2_vision is no plain stack of layers" in seen.no_formula
    for stage in language:
        assert stage.comparison is not None, stage.no_formula
        assert stage.comparison.flops_ratio == pytest.approx(1, abs=1e-3)


def test_a_plain_vision_encoder_has_a_formula() -> None:
    config = transformers.ViTConfig(num_hidden_layers=3)
    with torch.device("meta"):
        model = transformers.ViTModel(config).eval()
    result = analyse([StaticStage("vision", lambda: model(empty(2, 3, 224, 224)))], config)
    (stage,) = result.stages
    assert stage.comparison is not None, stage.no_formula
    assert stage.comparison.flops_ratio == pytest.approx(1, abs=0.01)
    assert stage.work == StageWork(batch=2, new_tokens=197, part="vision")
    assert result.architecture is not None


# ----------------------------------------------------------------------------------------- bytes, op by op

A = 1000 * 4  # bytes of a vector of 1000 float32


@pytest.mark.parametrize(
    ("run", "operator", "read", "written"),
    [
        (lambda x, y: x + y, "aten.add", 2 * A, A),
        (lambda x, y: x * x, "aten.mul", A, A),
        (lambda x, y: x.add_(y), "aten.add_", 2 * A, A),
        (lambda x, y: x.copy_(y), "aten.copy_", A, A),
        (lambda x, y: x.zero_(), "aten.zero_", 0, A),
        (lambda x, y: torch.add(x, 1, out=y), "aten.add", A, A),
        (lambda x, y: torch.cat([x, y]), "aten.cat", 2 * A, 2 * A),
        (lambda x, y: x.expand(7, 1000).clone(), "aten.clone", A, 7 * A),
        (lambda x, y: x[:10].expand(5, 10) + 1, "aten.add", 40, 200),
        (lambda x, y: x.sum(), "aten.sum", A, 4),
        (lambda x, y: x.to(BF16), "aten._to_copy", A, A // 2),
        (lambda x, y: x.view(100, 10)[:, 2:4].contiguous(), "aten.clone", 800, 800),
        (lambda x, y: torch.zeros(1000, device="meta"), "aten.zeros", 0, A),
        (lambda x, y: x.split(500)[0] * x.split(500)[1], "aten.mul", A, A // 2),
    ],
)
def test_bytes_of_an_operator(run: Callable[..., Any], operator: str, read: int, written: int) -> None:
    x, y = empty(1000), empty(1000)
    row = only(counted(lambda: run(x, y)), operator)
    assert (row.bytes_read, row.bytes_written) == (read, written)


@pytest.mark.parametrize(
    ("run", "operator", "read", "written"),
    [
        # 3 rows of 16 float32 and 3 indices of int64
        (lambda table, index: functional.embedding(index, table), "aten.embedding", 192 + 24, 192),
        (lambda table, index: table[index], "aten.index", 192 + 24, 192),
        (lambda table, index: table.index_select(0, index), "aten.index_select", 192 + 24, 192),
        (lambda table, index: table.index_copy_(0, index, table[:3]), "aten.index_copy_", 192 + 24, 192),
        (lambda table, index: table.index_add_(0, index, table[:3]), "aten.index_add_", 192 + 24 + 192, 192),
        (lambda table, index: table.__setitem__(index, table[:3]), "aten.index_put_", 192 + 24, 192),
    ],
)
def test_tables_are_read_and_written_by_the_row(
    run: Callable[..., Any], operator: str, read: int, written: int
) -> None:
    table, index = empty(10_000, 16), torch.zeros(3, dtype=torch.long, device="meta")
    row = only(counted(lambda: run(table, index)), operator)
    assert (row.bytes_read, row.bytes_written) == (read, written)


def test_views_are_free() -> None:
    x = empty(8, 16, 32)
    count = counted(
        lambda: x.transpose(0, 1)[2:5].unsqueeze(0).expand(4, 3, 8, 32).permute(3, 2, 1, 0).detach().squeeze()
    )
    assert not count.operators
    assert count.free_calls >= 6
    assert count.distinct_bytes_read == 0


def test_what_was_there_before_is_told_from_what_the_stage_made() -> None:
    weights, x = empty(64, 64), empty(8, 64)
    cache = empty(1000, 64)

    def run() -> None:
        once = x @ weights
        cache[:8].copy_(once @ weights)
        (cache[:100] @ weights).relu_()

    assert counted(run).distinct_bytes_read == 4 * (64 * 64 + 8 * 64 + 100 * 64)


# ---------------------------------------------------------------------------------------------- treatments


def test_every_operator_is_told_what_it_is() -> None:
    x, w = empty(32, 64), empty(64, 64)

    def run() -> None:
        y = functional.gelu(functional.layer_norm(x @ w, (64,)))
        y.softmax(-1).sort()
        torch.cat([y, y]).to(torch.float16)
        torch.arange(10, device="meta") + 1

    count = counted(run)
    treatment = {(row.operator, row.treatment) for row in count.operators}
    assert ("aten.mm", MATRIX) in treatment
    assert {("aten.gelu", ESTIMATED), ("aten.native_layer_norm", ESTIMATED), ("aten._softmax", ESTIMATED)} <= treatment
    assert {("aten.cat", MOVES_DATA), ("aten._to_copy", MOVES_DATA), ("aten.add", MOVES_DATA)} <= treatment
    assert [row.operator for row in count.treated(NOT_COUNTED)] == ["aten.sort"]
    assert count.matrix_flops == 2 * 32 * 64 * 64
    assert only(count, "aten.gelu").estimated_flops == 8 * 32 * 64
    assert only(count, "aten.mm").formula == "torch"


def test_a_kernel_of_one_s_own_is_listed_until_torch_is_told_its_formula() -> None:
    from torch.utils import flop_counter

    library = torch.library.Library("static_test", "DEF")
    library.define("square(Tensor x) -> Tensor")
    library.impl("square", torch.empty_like, "Meta")
    square = torch.ops.static_test.square
    x = empty(8, 8)
    (row,) = counted(lambda: square(x)).operators
    assert (row.operator, row.treatment, row.calls, row.bytes) == ("static_test.square", NOT_COUNTED, 1, 2 * 256)
    flop_counter.register_flop_formula(square)(lambda shape, out_shape=None: 2 * shape[0] ** 3)
    try:
        (row,) = counted(lambda: square(x)).operators
    finally:
        del flop_counter.flop_registry[square]
    assert (row.treatment, row.matrix_flops) == (MATRIX, 1024)


def test_operators_that_could_not_be_counted_are_listed() -> None:
    model, config = model_of("mixtral", num_hidden_layers=2)
    result = analyse(stages_of(model), config)
    listed = {row["operator"]: row for row in as_json(result)["stages"][0]["count"]["operators_not_counted"]}
    assert listed.keys() == {"aten.topk", "aten.sort", "aten.histc"}
    assert all(row["calls"] == 2 and row["bytes"] > 0 for row in listed.values())
    assert "OPERATORS_NOT_COUNTED" in [diagnosis.code for diagnosis in result.diagnostics]


@pytest.mark.parametrize(
    "needs_values",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.sum() > 0),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.cpu(),
    ],
)
def test_a_stage_that_needs_values_ends_with_the_reason(needs_values: Callable[[Any], Any]) -> None:
    x = empty(16, 16)
    count = counted(lambda: needs_values(x @ x))
    assert "needs the values of a tensor" in count.failure
    assert count.matrix_flops == 2 * 16**3  # what came before is kept
    result = analyse([StaticStage("stage", lambda: needs_values(x @ x))], None)
    assert result.stages[0].total.matrix_flops_counter is None
    assert result.diagnostics[0].code == "STAGE_NOT_COUNTED"
    assert "needs the values" in render_markdown(result)


def test_where_the_counter_fails_the_formula_stands() -> None:
    model, config = model_of("llama", num_hidden_layers=2)
    (whole, _) = analyse(stages_of(model), config).stages

    def run() -> None:
        model(torch.zeros(1, 200, dtype=torch.long, device="meta"), logits_to_keep=1).logits.argmax().item()

    work = StageWork(batch=1, new_tokens=200, head_positions=1)
    (stage,) = analyse([StaticStage("prefill", run, work=work)], config).stages
    assert stage.work_source == "given by the stage"
    assert stage.total.matrix_flops_counter is None
    assert stage.total.matrix_flops_formula_full == whole.total.matrix_flops_formula_full
    assert stage.comparison is not None
    assert "stopped before the end" in stage.comparison.explanations[0]


def test_an_error_of_the_stage_is_told_and_no_crash() -> None:
    count = counted(lambda: empty(2, 3) @ empty(2, 3))
    assert "RuntimeError" in count.failure
    assert not count.complete


# ------------------------------------------------------------------------------------------------ differences


def test_a_difference_is_explained_part_by_part() -> None:
    model, config = model_of("llama", num_hidden_layers=2)
    every, _ = stages_of(model, logits_to_keep=0)
    wrong = StaticStage("prefill", every.run, work=StageWork(batch=1, new_tokens=200, head_positions=1))
    (stage,) = analyse([wrong], config).stages
    assert stage.comparison is not None
    assert not stage.comparison.agrees
    (sentence,) = [s for s in stage.comparison.explanations if s.startswith(HEAD)]
    assert "another number of positions" in sentence


def test_a_part_the_formula_does_not_know_is_named() -> None:
    model, config = model_of("llama", num_hidden_layers=2)
    prefill, _ = stages_of(model)
    adapter = empty(4096, 30_000, dtype=BF16)

    def run() -> None:
        prefill.run()
        empty(200, 4096, dtype=BF16) @ adapter

    (stage,) = analyse([StaticStage("prefill", run)], config).stages
    assert stage.comparison is not None
    assert any("products the formula does not know" in sentence for sentence in stage.comparison.explanations)


def renamed(config: Any, name: str) -> SimpleNamespace:
    return SimpleNamespace(**(config.to_dict() | {"model_type": name}))


def test_an_unknown_model_type_is_believed_only_where_the_counter_agrees() -> None:
    model, config = model_of("llama", num_hidden_layers=2)
    result = analyse(stages_of(model), renamed(config, "brand_new"))
    assert result.architecture is not None
    assert not result.architecture.known
    assert all(stage.comparison and stage.comparison.agrees for stage in result.stages)
    model, config = model_of("arcee", num_hidden_layers=2)  # two matrices in the MLP, not three
    result = analyse(stages_of(model), renamed(config, "brand_new"))
    assert all(stage.formula is None for stage in result.stages)
    assert "brand_new is not among those" in result.stages[0].no_formula


# ------------------------------------------------------------------------------------------------------ files


@pytest.fixture(scope="module")
def small() -> StaticCompute:
    model, config = model_of("qwen3_moe", num_hidden_layers=2)
    return analyse(stages_of(model), config)


def test_both_files_are_written(small: StaticCompute, tmp_path: Path) -> None:
    written = write_static_compute(small, tmp_path / "static_analysis")
    assert [path.name for path in written] == ["static_compute.json", "static_compute.md"]
    data = json.loads(written[0].read_text())
    assert data["schema_version"] == "1.0"
    assert data["environment"].keys() == {"torch", "transformers"}
    prefill = data["stages"][0]
    assert prefill["total"]["matrix_flops_counter"] == prefill["count"]["matrix_flops"]
    assert prefill["count"]["matrix_flops"] == sum(row["matrix_flops"] for row in prefill["count"]["operators"])
    assert prefill["formula"]["flops_full"] == sum(term["flops_full"] for term in prefill["formula"]["terms"])
    assert all(term["formula"] and term["bytes_formula"] for term in prefill["formula"]["terms"])
    assert prefill["formula"]["symbols"].keys() <= data["symbols"].keys()
    assert prefill["intensity_operator_by_operator"] < prefill["intensity_most"]
    assert prefill["count"]["attention"][0]["mask"] == "causal"
    text = written[1].read_text()
    for expected in ("## All stages", "## Stage `prefill`", "2 · T · k · M · h · J · Lx", "`aten.topk`", "FLOP", "GB"):
        assert expected in text


def test_a_stage_s_name_cannot_break_the_page(small: StaticCompute) -> None:
    evil = "</td><script>|`x`\n# head"
    x = empty(4, 4)
    text = render_markdown(analyse([StaticStage(evil, lambda: x @ x)], None))
    assert "\n# head" not in text
    from markdown_it import MarkdownIt

    html = MarkdownIt("commonmark").enable("table").render(text)
    assert "<script>" not in html


def test_weights_have_the_type_that_most_matrix_flops_have(small: StaticCompute) -> None:
    wide, narrow = (
        analyse(stages_of(model), config).stages[1]
        for model, config in (model_of("llama", num_hidden_layers=2, dtype=dtype) for dtype in (torch.float32, BF16))
    )
    assert wide.formula is not None
    assert narrow.formula is not None
    assert wide.formula.weight_bytes == 2 * narrow.formula.weight_bytes


def test_an_architecture_can_be_given_instead_of_a_configuration(small: StaticCompute) -> None:
    model, config = model_of("llama", num_hidden_layers=2)
    architecture = architecture_of(config)
    assert all(stage.comparison and stage.comparison.agrees for stage in analyse(stages_of(model), architecture).stages)


def test_a_session_is_analysed_into_its_folder(tmp_path: Path) -> None:
    model, config = model_of("llama", num_hidden_layers=2)
    prefill, decode = stages_of(model, batch=2)
    shaped = [
        StaticStage("prefill", prefill.run, 1, {"batch": 2, "tokens": 200, "context": 200}),
        StaticStage("decode", decode.run, 16, {"batch": 2, "tokens": 1, "context": 201}),
    ]
    session = SimpleNamespace(hf_config=config, static_stages=lambda: shaped)
    summary = analyse_session(session, tmp_path / "static_analysis")
    assert summary["status"] == "done"
    assert {path.name for path in (tmp_path / "static_analysis").iterdir()} == set(summary["files"])
    step = summary["stages"]["decode"]
    assert step["repeats"] == 16
    assert step["matrix_flops_counter"] == pytest.approx(step["matrix_flops_formula_full"], rel=1e-3)
    data = json.loads((tmp_path / "static_analysis" / "static_compute.json").read_text())
    assert [stage["work_source"] for stage in data["stages"]] == ["given by the stage"] * 2
    assert data["stages"][1]["work"]["cached_tokens"] == 200
    assert data["stages"][1]["work"]["head_positions"] == 1


def test_odd_widths_of_experts_are_no_obstacle() -> None:
    """The grouped kernel asks for widths that are multiples of 16 bytes; the loop over experts does not."""
    model, config = model_of("mixtral", num_hidden_layers=2, intermediate_size=1407)
    model.set_experts_implementation("eager")
    for stage in analyse(stages_of(model), config).stages:
        assert stage.count.complete, stage.count.failure
        assert stage.comparison is not None
        assert stage.comparison.agrees
