"""Models behind the session interface: the tokens of `generate()`, the ranges of the contract, shapes without memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.errors import ExitCode, UserError
from llm_perf_opt.workloads.datasets import Item
from llm_perf_opt.workloads.model_session import Session
from llm_perf_opt.workloads.registry import open_session
from llm_perf_opt.workloads.workload_options import InferOptions, ModelOptions

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch", reason="models need torch")
transformers = pytest.importorskip("transformers", reason="models need transformers")

torch.set_num_threads(1)  # models this small gain nothing from a second thread and lose much on a busy machine

# Wide enough initial weights make every step choose another token: equal tokens then mean something.
SMALL = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.4,
    "max_position_embeddings": 512,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": SMALL,
    "qwen3": SMALL | {"head_dim": 16},
    "mistral": SMALL | {"sliding_window": None},
    "mistral-sliding": SMALL | {"sliding_window": 8},
    "gpt2": {"vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512, "initializer_range": 0.4},
    "qwen3_moe": SMALL | {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "mixtral": SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2},
}
PROMPTS = [
    Item("one", prompt="The quick brown fox"),
    Item("two", prompt="Ground control"),
    Item("three", prompt="It was a bright cold day in April, and the clocks"),
]


class RecordingWatch:
    """Notes which ranges open inside which."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.seen: list[str] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.open.append(name)
        self.seen.append("/".join(self.open))
        yield
        self.open.pop()

    step = stage


def session_of(architecture: str, *, infer: dict[str, Any] | None = None, **model: Any) -> Session[Any]:
    config = {"model_type": architecture.partition("-")[0], **ARCHITECTURES[architecture]} | model.pop("config", {})
    options = ModelOptions(name="hf_causal_lm", device="cpu", dtype="float32", config=config, **model)
    session = open_session(options, InferOptions(**({"max_new_tokens": 12} | (infer or {}))))
    session.load()
    return session


def generated(session: Any, prompt: Any, ends: list[int] | None) -> list[list[int]]:
    """What `model.generate()` gives for the same prompts, cut behind the first end-of-text token."""
    mask = torch.ones_like(prompt.inputs["input_ids"]) if prompt.mask is None else prompt.mask
    out = session._model.generate(
        **prompt.inputs,
        attention_mask=mask,
        max_new_tokens=session.infer.max_new_tokens,
        do_sample=False,
        eos_token_id=ends,
        pad_token_id=0,
    )
    rows = out[:, prompt.width :].tolist()
    cut = []
    for row in rows:
        stops = [at for at, token in enumerate(row) if token in (ends or [])]
        cut.append(row[: stops[0] + 1] if stops else row)
    return cut


# --- the same tokens as generate() ---------------------------------------------------------------------------


@pytest.mark.parametrize("items", [PROMPTS[:1], PROMPTS], ids=["one prompt", "three of unequal length"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_tokens_are_those_of_generate(architecture: str, items: list[Item]) -> None:
    session = session_of(architecture)
    prepared = session.prepare(items)
    output = session.run(prepared, RecordingWatch())
    assert output.tokens == generated(session, prepared, None)
    assert len(set(output.tokens[0])) > 4, "a model that repeats itself would prove nothing"
    assert output.facts["prefill"]["tokens"] == sum(len(item.prompt or "") + 1 for item in items)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen3_moe"])
def test_a_sequence_ends_where_generate_ends_it_and_the_others_go_on(architecture: str) -> None:
    free = session_of(architecture)
    tokens = free.run(free.prepare(PROMPTS), RecordingWatch()).tokens
    ends = [tokens[0][3], tokens[1][7]]  # two end-of-text tokens: one sequence stops early, one later
    session = session_of(architecture, infer={"ignore_eos": False}, config={"eos_token_id": ends, "pad_token_id": 0})
    prepared = session.prepare(PROMPTS)
    output = session.run(prepared, RecordingWatch())
    assert output.tokens == generated(session, prepared, ends)
    assert len(output.tokens[0]) <= 4
    assert output.tokens[0][-1] in ends


def test_decoding_stops_when_every_sequence_has_ended() -> None:
    free = session_of("llama")
    first = free.run(free.prepare(PROMPTS[:1]), RecordingWatch()).tokens[0]
    at = next(n for n, token in enumerate(first) if n and token not in first[:n])
    session = session_of("llama", infer={"ignore_eos": False}, config={"eos_token_id": first[at]})
    watch = RecordingWatch()
    output = session.run(session.prepare(PROMPTS[:1]), watch)
    assert output.tokens == [first[: at + 1]]
    assert watch.seen.count("generate/decode/decode_step") == at == output.facts["decode"]["steps"]


def test_a_model_that_ends_at_once_has_no_decode_stage() -> None:
    free = session_of("llama")
    first = free.run(free.prepare(PROMPTS[:1]), RecordingWatch()).tokens[0][0]
    session = session_of("llama", infer={"ignore_eos": False}, config={"eos_token_id": first})
    watch = RecordingWatch()
    assert session.run(session.prepare(PROMPTS[:1]), watch).tokens == [[first]]
    assert watch.seen == ["generate", "generate/prefill"]


@pytest.mark.parametrize("items", [PROMPTS[:1], PROMPTS], ids=["one prompt", "three of unequal length"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gpt2", "mixtral"])
def test_a_cache_of_fixed_length_gives_the_same_tokens(architecture: str, items: list[Item]) -> None:
    """What CUDA graphs capture, run without capturing: buffers, positions and masks are the same."""
    from llm_perf_opt.workloads.fixed_decode import FixedDecoder

    session: Any = session_of(architecture)
    prepared = session.prepare(items)
    expected = session.run(prepared, RecordingWatch()).tokens
    captures = []

    def capture(step: Any) -> Any:
        captures.append(step)
        return step

    session._decoder = FixedDecoder(session._model, ends=[], padding=0, new_tokens=12, capture=capture)
    for _ in range(2):  # the second time everything is there already, and must be as good as new
        assert session.run(prepared, RecordingWatch()).tokens == expected
    assert len(captures) == 1


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own, when it first compiles
def test_compiled_steps_give_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_, asked = torch.compile, []

    def traced_only(function: Any, mode: str, dynamic: bool) -> Any:
        # The whole way but for C++: that part takes a minute and is torch's own.
        asked.append(mode)
        return compile_(function, backend="eager", dynamic=dynamic)

    monkeypatch.setattr(torch, "compile", traced_only)
    expected = session_of("llama", infer={"max_new_tokens": 4})
    tokens = expected.run(expected.prepare(PROMPTS[:1]), RecordingWatch()).tokens
    session = session_of("llama", infer={"max_new_tokens": 4}, compile="default")
    assert session.run(session.prepare(PROMPTS[:1]), RecordingWatch()).tokens == tokens
    assert asked == ["default"]


def test_a_sliding_window_is_refused_where_the_cache_may_not_move() -> None:
    session = session_of("mistral-sliding", compile="default")
    with pytest.raises(UserError, match="sliding window"):
        session.prepare(PROMPTS[:1])


# --- ranges ------------------------------------------------------------------------------------------------


def test_prefill_and_decode_are_side_by_side_and_steps_are_inside_decode() -> None:
    session = session_of("llama", infer={"max_new_tokens": 3})
    watch = RecordingWatch()
    session.run(session.prepare(PROMPTS[:1]), watch)
    step = "generate/decode/decode_step"
    assert watch.seen == ["generate", "generate/prefill", "generate/decode", step, step]


def test_one_token_needs_no_decode() -> None:
    session = session_of("llama", infer={"max_new_tokens": 1})
    watch = RecordingWatch()
    assert len(session.run(session.prepare(PROMPTS[:1]), watch).tokens[0]) == 1
    assert watch.seen == ["generate", "generate/prefill"]


# --- tiny_llm ------------------------------------------------------------------------------------------------


def test_tiny_llm_reads_text_and_gives_text() -> None:
    session: Any = open_session(ModelOptions(device="cpu"), InferOptions(max_new_tokens=5))
    session.load()
    prepared = session.prepare([Item("x", prompt="Grüße")])
    assert prepared.lengths == [8]  # seven bytes and the token that begins a text
    assert session.tokenizer.decode(prepared.inputs["input_ids"][0].tolist()) == "Grüße"
    output = session.run(prepared, RecordingWatch())
    assert len(output.tokens[0]) == 5
    assert session.facts()["parameters"] < 1_000_000


def test_the_same_seed_gives_the_same_weights_and_another_gives_others() -> None:
    def tokens(seed: int) -> list[list[int]]:
        session = open_session(ModelOptions(device="cpu", seed=seed), InferOptions(max_new_tokens=8))
        session.load()
        return session.run(session.prepare(PROMPTS[:1]), RecordingWatch()).tokens

    assert tokens(1) == tokens(1) != tokens(2)


def test_a_page_is_read_through_the_text_beside_it(tmp_path: Path) -> None:
    page = tmp_path / "page.png"
    page.touch()
    (tmp_path / "page.txt").write_text("What the page says.", encoding="utf-8")
    session: Any = open_session(ModelOptions(device="cpu"), InferOptions())
    session.load()
    prepared = session.prepare([Item("p", path=page)])
    assert session.tokenizer.decode(prepared.inputs["input_ids"][0].tolist()) == "What the page says."
    assert any("text that lies beside it" in note for note in session.notes)


# --- random weights and local folders --------------------------------------------------------------------------


def test_without_a_tokenizer_prompts_are_random_ids_of_the_length_asked_for() -> None:
    session: Any = session_of("llama", infer={"prompt_tokens": 33})
    prepared = session.prepare(PROMPTS)
    assert prepared.lengths == [33, 33, 33]
    rows = prepared.inputs["input_ids"]
    assert not torch.equal(rows[0], rows[1])
    assert torch.equal(rows, session.prepare(PROMPTS).inputs["input_ids"])


def test_weights_are_made_in_the_type_asked_for() -> None:
    session: Any = open_session(
        ModelOptions(name="hf_causal_lm", device="cpu", dtype="bf16", config={"model_type": "llama", **SMALL}),
        InferOptions(prompt_tokens=4),
    )
    session.load()
    assert {p.dtype for p in session._model.parameters()} == {torch.bfloat16}
    assert session.facts()["parameter_bytes"] == 2 * session.facts()["parameters"]


def test_a_model_saved_to_a_folder_gives_the_same_tokens_again(tmp_path: Path) -> None:
    made: Any = session_of("qwen3", infer={"prompt_tokens": 16})
    made._model.save_pretrained(tmp_path / "model")
    read = open_session(
        ModelOptions(name="hf_causal_lm", path=tmp_path / "model", device="cpu", dtype="float32"),
        InferOptions(max_new_tokens=12, prompt_tokens=16),
    )
    read.load()
    assert made.facts()["weights"] == "random"
    assert read.facts()["weights"] == "from model.path"
    ours = [s.run(s.prepare(PROMPTS[:1]), RecordingWatch()).tokens for s in (made, read)]
    assert ours[0] == ours[1]


def test_a_tokenizer_in_the_folder_is_used(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made: Any = session_of("llama", infer={"prompt_tokens": 4})
    made._model.save_pretrained(tmp_path)
    words = {"<unk>": 0, "hello": 5, "there": 6}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>").save_pretrained(tmp_path)
    options = ModelOptions(name="hf_causal_lm", path=tmp_path, device="cpu", dtype="float32")
    session: Any = open_session(options, InferOptions(max_new_tokens=2))
    session.load()
    item = Item("x", prompt="hello there hello")
    assert session.prepare([item]).inputs["input_ids"].tolist() == [[5, 6, 5]]
    longer: Any = open_session(options, InferOptions(max_new_tokens=2, prompt_tokens=5))
    longer.load()
    assert longer.prepare([item]).inputs["input_ids"].tolist() == [[5, 6, 5, 5, 6]]


def test_what_a_model_asks_for_beyond_greedy_decoding_is_said(tmp_path: Path) -> None:
    made: Any = session_of("llama", infer={"prompt_tokens": 4})
    made._model.generation_config.repetition_penalty = 1.3
    made._model.save_pretrained(tmp_path)
    read = open_session(
        ModelOptions(name="hf_causal_lm", path=tmp_path, device="cpu", dtype="float32"), InferOptions(prompt_tokens=4)
    )
    read.load()
    assert any("repetition_penalty=1.3" in note for note in read.notes)


# --- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "message", "fix"),
    [
        ({"name": "tiny_lm"}, "Did you mean tiny_llm", "Known are tiny_llm, hf_causal_lm"),
        (
            {"name": "hf_causal_lm", "config": {"num_hidden_layers": 2}},
            "needs model.path=FOLDER or model.config",
            "model_type: qwen3",
        ),
        ({"name": "hf_causal_lm", "config": {"model_type": "qwem3"}}, "Did you mean qwen3", "config.json"),
        ({"config": {"num_hiden_layers": 2}}, "Did you mean num_hidden_layers", "config.json"),
        ({"config": {"num_hidden_layers": "two"}}, "expected int", "Correct that value"),
        ({"name": "hf_causal_lm", "path": "/no/such/folder"}, "there is no /no/such/folder/config.json", "downloaded"),
        ({"name": "deepseek_ocr", "config": {"preset": "small"}}, "preset='small'", "default, tiny"),
        ({"name": "deepseek_ocr", "config": {"model_type": "llama", **SMALL}}, "this is llama", "hf_causal_lm"),
        ({"name": "dummy_shallow_resnet", "config": {"widht": 3}}, "Did you mean width", "classes"),
        ({"name": "dummy_shallow_resnet", "compile": True}, "does not know model.compile", "Leave out"),
    ],
)
def test_a_model_that_cannot_be_is_refused_with_the_way_out(model: dict[str, Any], message: str, fix: str) -> None:
    with pytest.raises(UserError) as caught:
        open_session(ModelOptions(device="cpu", **model), InferOptions())
    assert message in caught.value.message
    assert fix in caught.value.fix
    assert caught.value.code == ExitCode.BAD_INPUT


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["tiny_llm", "deepseek_ocr", "dummy_shallow_resnet"])
def test_a_gpu_that_is_not_there_is_a_missing_tool(name: str) -> None:
    session = open_session(ModelOptions(name=name), InferOptions())
    with pytest.raises(UserError) as caught:
        session.load()
    assert caught.value.code == ExitCode.MISSING_TOOL
    assert "device=cpu" in caught.value.fix
    assert "llm-perf doctor" in caught.value.fix


def test_a_text_longer_than_the_models_positions_is_refused() -> None:
    session = session_of("gpt2", infer={"prompt_tokens": 510})
    with pytest.raises(UserError, match="522, but the model has 512 positions"):
        session.prepare(PROMPTS[:1])


def test_an_attention_implementation_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match=r"model\.attn_implementation=nonsense cannot be used"):
        session_of("llama", attn_implementation="nonsense")


def test_a_failure_inside_the_model_is_the_workloads_failure() -> None:
    session: Any = session_of("llama")
    prepared = session.prepare(PROMPTS[:1])
    session._model.lm_head = None
    with pytest.raises(UserError, match="The model hf_causal_lm failed: TypeError") as caught:
        session.run(prepared, RecordingWatch())
    assert caught.value.code == ExitCode.WORKLOAD_FAILED


# --- shapes without memory -------------------------------------------------------------------------------------


def flops(run: Any) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_static_stages_run_on_the_meta_device_and_again(architecture: str, dtype: str) -> None:
    config = {"model_type": architecture.partition("-")[0], **ARCHITECTURES[architecture]}
    session = open_session(
        ModelOptions(name="hf_causal_lm", config=config, dtype=dtype),
        InferOptions(max_new_tokens=9, prompt_tokens=64, batch_size=2),
    )
    prefill, decode = session.static_stages()  # without load, and without the GPU the options name
    assert (prefill.name, prefill.repeats, decode.name, decode.repeats) == ("prefill", 1, "decode", 8)
    assert decode.shape == {"batch": 2, "tokens": 1, "context": 64 + 3 + 1}
    assert flops(prefill.run) == flops(prefill.run) > flops(decode.run) == flops(decode.run) > 0


def test_the_flops_of_a_dense_decoder_are_twice_its_weights_for_every_token() -> None:
    session = open_session(
        ModelOptions(name="hf_causal_lm", config={"model_type": "llama", **SMALL}),
        InferOptions(max_new_tokens=2, prompt_tokens=100),
    )
    _, decode = session.static_stages()
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128  # query and output, key and value, three of the MLP
    attention = 2 * 64 * decode.shape["context"]  # scores and values
    rope = decode.shape["tokens"] * 16  # transformers before 5.18 makes rotary angles with a matrix product
    expected = 2 * (2 * (layer + attention) + 64 * 320)
    assert flops(decode.run) in (expected, expected + rope)


def test_a_large_model_is_counted_without_its_memory() -> None:
    """30 billion parameters in a moment: nothing of them is there."""
    config = {
        "model_type": "qwen3",
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "num_hidden_layers": 48,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 8192,
    }
    session = open_session(
        ModelOptions(name="hf_causal_lm", config=config), InferOptions(max_new_tokens=2, prompt_tokens=2048)
    )
    prefill, _ = session.static_stages()
    parameters = 48 * (2 * 6144 * 6144 + 2 * 6144 * 1024 + 3 * 6144 * 24576)
    assert flops(prefill.run) > 2 * parameters * 2048


def test_the_length_of_prompts_must_be_known_for_counting() -> None:
    session = open_session(ModelOptions(device="cpu"), InferOptions())
    with pytest.raises(UserError, match="not known before they are prepared"):
        session.static_stages()


# --- pages ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("PIL", reason="pages need Pillow")
    from llm_perf_opt.workloads.pages import draw_page

    path = tmp_path_factory.mktemp("pages") / "page.png"
    draw_page("A page\nwith some words on it.").save(path)
    return path


def ocr(**infer: Any) -> Any:
    options = ModelOptions(name="deepseek_ocr", device="cpu", dtype="float32", config={"preset": "tiny"})
    session = open_session(options, InferOptions(**({"max_new_tokens": 4, "max_image_tiles": 0} | infer)))
    session.load()
    return session


def test_a_page_goes_through_vision_projector_prefill_and_decode(page: Path) -> None:
    session = ocr()
    watch = RecordingWatch()
    output = session.run(session.prepare([Item("p", path=page)]), watch)
    assert session.stages == ("vision", "projector", "prefill", "decode")
    assert watch.seen[:5] == ["generate", *(f"generate/{stage}" for stage in session.stages)]
    assert output.facts["vision"] == {"pages": 1, "tiles": 0}
    assert output.facts["projector"] == {"tokens": 257}


@pytest.mark.parametrize("tiles", [0, 2], ids=["whole page", "with tiles"])
def test_pages_give_the_tokens_of_generate(page: Path, tiles: int) -> None:
    session = ocr(max_image_tiles=tiles, max_new_tokens=8)
    items = [Item("a", path=page), Item("b", prompt="Where is the title, and what does it say?", path=page)]
    prepared = session.prepare(items)
    assert prepared.prompt.mask is not None
    output = session.run(prepared, RecordingWatch())
    out = session._model.generate(
        input_ids=prepared.prompt.inputs["input_ids"],
        attention_mask=prepared.prompt.mask,
        pixel_values=prepared.pages,
        pixel_values_local=prepared.tiles,
        num_local_patches=prepared.tiles_per_item,
        max_new_tokens=8,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert output.tokens == out[:, prepared.prompt.width :].tolist()


def test_static_stages_of_pages_cover_every_stage() -> None:
    session = open_session(
        ModelOptions(name="deepseek_ocr", config={"preset": "tiny"}), InferOptions(max_new_tokens=3, max_image_tiles=6)
    )
    stages = session.static_stages()
    assert [stage.name for stage in stages] == ["vision", "projector", "prefill", "decode"]
    assert stages[0].shape == {"batch": 1, "pages": 1, "tiles": 6}
    assert all(flops(stage.run) > 0 for stage in stages)


def test_the_default_shape_of_the_page_reader_is_that_of_deepseek_ocr_2() -> None:
    session: Any = open_session(ModelOptions(name="deepseek_ocr"), InferOptions())
    from llm_perf_opt.workloads.hf_models import build_on_meta, size_of

    parameters = size_of(build_on_meta(session.options, session.hf_config, session.auto_class))["parameters"]
    assert 3.2e9 < parameters < 3.5e9


OWN_CODE = '''
import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel, PretrainedConfig, LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast


class OwnConfig(PretrainedConfig):
    model_type = "own_ocr"


class OwnOcr(LlamaForCausalLM):
    """The names and the method of DeepSeek-OCR's own code, around a tiny decoder."""

    config_class = LlamaConfig

    def __init__(self, config):
        super().__init__(config)
        self.sam_model = nn.Conv2d(3, 8, 16, 16)
        self.projector = nn.Linear(8, config.hidden_size)
        self.post_init()

    def forward(self, input_ids=None, images=None, past_key_values=None, **kwargs):
        if images is not None and (past_key_values is None or past_key_values.get_seq_length() == 0):
            self.projector(self.sam_model(images).flatten(2).transpose(1, 2))
        return super().forward(input_ids=input_ids, past_key_values=past_key_values, **kwargs)

    def prepare_inputs_for_generation(self, *args, images=None, **kwargs):
        return super().prepare_inputs_for_generation(*args, **kwargs) | {"images": images}

    def infer(self, tokenizer, prompt="", image_file="", output_path="", eval_mode=False):
        from PIL import Image

        with Image.open(image_file) as page:
            assert page.size[0] > 0
        ids = torch.tensor([tokenizer.encode(prompt)])
        out = self.generate(ids, images=torch.zeros(1, 3, 32, 32), max_new_tokens=8192, do_sample=False)
        return tokenizer.decode(out[0, ids.shape[1]:])
'''


def test_a_folder_with_code_of_its_own_is_watched_from_outside(
    tmp_path: Path, page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = tmp_path / "own"
    made: Any = session_of("llama", infer={"prompt_tokens": 4})
    made._model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "modeling_own.OwnOcr"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_own.py").write_text(OWN_CODE)
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "image": 5}, unk_token="<unk>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>").save_pretrained(folder)

    def options(trusted: bool) -> ModelOptions:
        return ModelOptions(name="deepseek_ocr", path=folder, device="cpu", dtype="float32", trust_remote_code=trusted)

    with pytest.raises(UserError, match="runs Python code from that folder"):
        open_session(options(False), InferOptions())
    session = open_session(options(True), InferOptions(max_new_tokens=3))
    session.load()
    watch = RecordingWatch()
    output = session.run(session.prepare([Item("p", path=page)]), watch)
    step = "generate/decode/decode_step"
    inside = ["generate/prefill/vision", "generate/prefill/projector"]
    assert watch.seen == ["generate", "generate/prefill", *inside, "generate/decode", step, step]
    assert len(output.tokens[0]) == 3
    assert output.facts["decode"]["steps"] == 2
    with pytest.raises(UserError, match="cannot be run on the meta device"):
        session.static_stages()


# --- without torch ---------------------------------------------------------------------------------------------


@pytest.mark.process
def test_nothing_but_running_a_model_needs_torch() -> None:
    """The package, the options, the datasets and the registry import where torch is not installed."""
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "import llm_perf_opt, llm_perf_opt.workloads.marks as marks\n"
        "import llm_perf_opt.workloads.datasets, llm_perf_opt.workloads.model_session\n"
        "from llm_perf_opt.workloads.workload_options import ModelOptions, InferOptions\n"
        "from llm_perf_opt.workloads.registry import open_session\n"
        "from llm_perf_opt.errors import MissingTool\n"
        "with marks.mark('x'): pass\n"
        "try: open_session(ModelOptions(), InferOptions())\n"
        "except MissingTool as error: print(int(error.code), error.fix)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("3 Install it: pip install")
