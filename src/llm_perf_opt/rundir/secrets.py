"""What may be written down of an environment, of settings or of a text.

Environments are written by an allow-list: names that are known to matter, with values that are plainly a path, a
number, an identifier or a known word (plain_values.py). Command lines have a cleaner of their own (command_lines.py).
In texts of others, where there is no list of what may stand, what looks like a secret is taken out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from llm_perf_opt.options import KEYS
from llm_perf_opt.rundir.plain_values import is_known_word, is_plain

_BEHIND = r"(?:[_.-]?(?:id|value|file|path|str|url|uri|seed|\d+))?$"
# Names that hold secrets. A token is one, `max_new_tokens`, a length of tokens and a tokenizer are not.
_NAMES = re.compile(
    r"(?<!tik)token(?!s|iz|[_-]?(?:ids?|type|len|count|budget|limit|num|per|dim|size|level|mixer|embed))"
    r"|secret|passw|passphrase|api[_-]?key|access[_-]?key|private|credential|auth(?!or)|cookie|bearer|webhook"
    r"|session[_-]?(?:id|key)|signature|connection[_-]?string|conn[_-]?str|account[_-]?key"
    rf"|(?:^|[_.-])(?:pw|pwd|otp|psk|creds?|jwt|dsn){_BEHIND}|[a-z]pwd$|^pgpass|(?<!by)(?<!com)(?<!sur)(?<!low)(?<!high)(?<!band)(?<!all)(?<!one)(?<!two)(?<=[a-z0-9])pass$",
    re.IGNORECASE,
)
# Words that are often something else: in a text of others their values must look the part, too.
_WEAK_NAMES = re.compile(rf"(?:^|[_.-])(?:key|pass|pin|sk|pat|sas|sig|salt|hook){_BEHIND}", re.IGNORECASE)
# Values that are one whatever they are called.
_TOKENS = (
    r"hf_[A-Za-z0-9]{10,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w+|AKIA[0-9A-Z]{16}|\b[spr]k[-_](?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{16,}"
    r"|xox[abprs]-[\w-]+|eyJ[A-Za-z0-9_-]{10,}\.[\w.-]*|AIza[0-9A-Za-z_-]{30,}|glpat-[\w-]+"
)
# Addresses that open a door: of web hooks the path, of others a user or a signature in the query.
_HOOKS = r"https?://[^\s\"'<>]*(?:hooks?\b|webhook)[^\s\"'<>]*"
_QUERY = r"(?<=[?&])(?:sig|signature|token|key|code|secret|password|access_token|api_key|X-Amz-\w+)=[^\s\"'<>&]+"
_VALUES = re.compile(rf"{_TOKENS}|{_HOOKS}|{_QUERY}|-----BEGIN|://[^/\s:@]*:[^/\s@]+@")
SECRET_IN_TEXT = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    rf"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)|{_HOOKS}|{_QUERY}|{_TOKENS}"
    r"|(?i:(?<=bearer )|(?<=authorization: basic ))[A-Za-z0-9._~+/=-]{6,}",
    re.DOTALL,
)
# `HF_TOKEN=…` and `"password": "…"` as a program prints them, and `--api-key …` or `-p …` of a command line.
_ASSIGNED = re.compile(
    r"(?P<name>\b[A-Za-z][\w.-]*)(?P<between>\\?[\"']?\s?[=:]\s?\\?[\"']?)"
    r"(?P<value>(?!\(removed|\(hidden|(?i:bearer|basic) )[^\s\"'<>,;\\]{4,})"
    r"|(?P<option>(?<![\w-])--?[A-Za-z][\w-]*)(?P<space>[= ]\s*[\"']?)"
    r"(?P<word>(?!\(removed|\(hidden)[^\s\"'<>-][^\s\"'<>]*)"
)
# `time per output token: 14.93 ms`: what programs of this field print of tokens. Nobody's secret is a decimal fraction.
_FRACTION = re.compile(r"\d{1,9}\.\d{1,9}")
REMOVED = "(removed: looks like a secret)"

# Names of variables that matter to a measurement: whole families, and single ones.
_FAMILY_NAMES = """
    CUDA_ CUDNN_ CUBLAS_ CUBLASLT_ CUSPARSE_ CUTLASS_ CUPTI_ NCCL_ NVIDIA_ NVTE_ NVSHMEM_ NVTX_ NSYS_ NCU_
    TORCH_ TORCHINDUCTOR_ TORCHDYNAMO_ TORCHELASTIC_ PYTORCH_ AOT_ TRITON_ XFORMERS_ FLASH_ATTENTION_ FLASH_ATTN_
    FLASHINFER_ OMP_ KMP_ GOMP_ MKL_ OPENBLAS_ NUMEXPR_ BLIS_ SLURM_ OMPI_ PMI_ PMIX_ UCX_ GLOO_ FI_
    HF_ HUGGINGFACE_ TRANSFORMERS_ TOKENIZERS_ DIFFUSERS_ ACCELERATE_ BITSANDBYTES_ BNB_ DEEPSPEED_ DS_ MEGATRON_
    VLLM_ SGLANG_ SGL_ TRTLLM_ TLLM_ TENSORRT_ LMDEPLOY_ XLA_ JAX_ TF_CPP_ TF_XLA_ TF_GPU_ PYTHON LLM_PERF_ MALLOC_
"""
_SINGLE_NAMES = """
    PATH LD_LIBRARY_PATH LD_PRELOAD LANG LC_ALL TZ TMPDIR XDG_CACHE_HOME RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE
    NODE_RANK GROUP_RANK ROLE_RANK MASTER_PORT GPU_DEVICE_ORDINAL CI VIRTUAL_ENV
    CONDA_PREFIX CONDA_DEFAULT_ENV
"""
_FAMILIES, _SINGLE = tuple(_FAMILY_NAMES.split()), frozenset(_SINGLE_NAMES.split())


def is_secret_name(name: str) -> bool:
    """Does a variable, option or key of this name hold what nobody else may know?"""
    shells_own = name in ("PWD", "OLDPWD")  # folders
    return not shells_own and bool(_NAMES.search(name) or _WEAK_NAMES.search(name))


def is_secret(name: str, value: str) -> bool:
    """Does it look like a secret?"""
    return is_secret_name(name) or _VALUES.search(value) is not None


def is_kept_variable(name: str, value: str) -> bool:
    """May a variable of the environment be written down?"""
    known = name in _SINGLE or name.startswith(_FAMILIES)
    return known and not is_secret(name, value) and all(is_plain(part.lstrip("-")) for part in re.split(r"[ =]", value))


def kept_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are known to matter, where their values are plain; of all others not even the name."""
    return {name: value for name, value in sorted(environment.items()) if is_kept_variable(name, value)}


def without_secret_text(text: str) -> str:
    """A log or a document without what looks like a secret."""

    def assigned(found: re.Match[str]) -> str:
        if found["name"]:
            name, between, value = found["name"], found["between"], found["value"]
        else:
            name, between, value = found["option"].lstrip("-"), found["space"], found["word"]
        weak = found["name"] and not _NAMES.search(name) and not name.isupper()  # `key=value`, `pass: 3`
        harmless = is_plain(value) if weak else is_known_word(value) or _FRACTION.fullmatch(value)
        hidden = is_secret_name(name) and not harmless
        return f"{found[0][: found[0].index(name) + len(name)]}{between}{REMOVED}" if hidden else found[0]

    return _ASSIGNED.sub(assigned, SECRET_IN_TEXT.sub(REMOVED, text))


# Keys whose values may be anything: what they are for is not ours to know.
FREE_KEYS = ("pipeline.workload.command", "pipeline.ncu.ncu_cli.extra_args", "pipeline.nsys.extra_args", "model.config")


def clean_settings(settings: Mapping[str, Any], *, show: bool = False) -> dict[str, Any]:
    """Settings of a run. Those that are declared were checked, and keep what does not look like a secret; of all others
    only plain values stay. `show`: the user wants to see more."""
    return {name: _clean_setting(value, str(name), str(name), show) for name, value in settings.items()}


def _clean_setting(value: Any, key: str, name: str, show: bool) -> Any:
    from llm_perf_opt.rundir.command_lines import clean_argv

    if isinstance(value, Mapping):
        return {n: _clean_setting(item, f"{key}.{n}", str(n), show) for n, item in value.items()}
    open_ended = key.startswith(FREE_KEYS) or ("." in key and key not in KEYS)
    if isinstance(value, (list, tuple)):
        words = list(value)
        if words and all(isinstance(word, str) for word in words):
            return clean_argv(words, show=show or not open_ended)
        return [_clean_setting(word, key, name, show) for word in words]
    if isinstance(value, str) and value:
        hidden = is_secret(name, value) if show or not open_ended else is_secret_name(name) or not is_plain(value)
        return REMOVED if hidden else value
    return value


def parts_of(value: str) -> Iterator[str]:
    """A hidden value, and what in it may stand elsewhere by itself: a password in JSON, in an address, in a header."""
    yield value
    pieces = [piece for piece in re.split(r"[\s\"'{}\[\](),;:=@/?&<>|\\]+", value) if piece]
    if len(pieces) > 1:
        yield from (piece for piece in pieces if not is_plain(piece))
        yield from (found[0].rpartition(":")[2] for found in SECRET_IN_TEXT.finditer(value))
        yield from (found["value"] or found["word"] for found in _ASSIGNED.finditer(value) if _holds_secret(found))


def _holds_secret(found: re.Match[str]) -> bool:
    return is_secret_name(found["name"] or found["option"].lstrip("-"))
