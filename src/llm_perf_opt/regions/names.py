"""Names for people: kernel names without the template thicket, and any name without what breaks a screen."""

from __future__ import annotations

import re
from functools import lru_cache

_LONGEST = 200
# Control characters, line and paragraph separators, and the marks that turn text around.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def visible(name: str, longest: int = _LONGEST) -> str:
    r"""One line of text that shows what a name is: control characters as `\xNN`, the middle cut if long."""
    text = UNSAFE.sub(_escape, name)
    if len(text) > longest:
        half = (longest - 3) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return text or "(empty name)"


def printable(text: str) -> str:
    """Text for a terminal: lines stay lines, and no other control character of whoever wrote it takes effect."""
    return "\n".join(UNSAFE.sub(_escape, line) for line in text.split("\n"))


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


# Parts of template arguments that say nothing about what a kernel does.
_FILLER_WORDS = """
    at native std cuda c10 void int unsigned long short char float double bool signed const array tuple pair
    size_t int32_t int64_t uint8_t uint32_t uint64_t BFloat16 Half half nv_bfloat16 complex true false anonymous
    namespace unnamed lambda instance operator type TensorIteratorBase TensorBase Tensor TensorIterator
    gpu_kernel_impl gpu_kernel_impl_nocast TrivialOffsetCalculator OffsetCalculator memory LoadWithoutCast
    StoreWithoutCast LoadWithCast StoreWithCast detail internal cutlass cute cub thrust gemm kernel device
    threadblock warp arch layout platform templates functor func_wrapper_t ReduceOp OpaqueType BinaryFunctor
    AUnaryFunctor BUnaryFunctor TensorListMetadata TensorListScalarListMetadata KernelParams Params OpType
    float2 __nv_bfloat16 __half bfloat16_t
"""
_FILLER = frozenset(_FILLER_WORDS.split())

# Long names without templates: what tells them apart is kept, the rest says nothing to people.
_SHORTER = (
    (re.compile(r"^(sm\d+_xmma_\w+?)_tilesize(\d+x\d+x\d+)(?:.*?(_split_?k|_segment_k_off))?.*"), r"\1_\2\3"),
    (re.compile(r"^cudnn_generated_fort_native_(\w+?)_knob_\w*?(\d+x\d+x\d+)_.*"), r"cudnn_\1_\2"),
    (re.compile(r"^cudnn_(?:infer|train)_(\w+)"), r"cudnn_\1"),
    (re.compile(r"^kernel_cutlass_kernel_(\w+?)_object_at_.*"), r"cutlass_\1"),
)
_WRAPPERS = ("Kernel", "Kernel2", "device_kernel")  # of cutlass: the template argument is the kernel


@lru_cache(maxsize=1 << 18)  # as many as family_of
def short_kernel_name(name: str) -> str:
    """The function's own name without return type, namespaces and parameters, and what tells its templates apart.

    `void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, …>(int, …)` is
    `vectorized_elementwise_kernel<FillFunctor>`.
    """
    plain = name.replace("(anonymous namespace)", "").replace("<unnamed>", "").replace("unnamed>::", "")
    words = re.findall(r"[A-Za-z_~][\w~]*", _outside_brackets(plain).rsplit("::", 1)[-1])
    if not words:
        return visible(name, 60)
    own = words[-1]
    for pattern, form in _SHORTER:
        own = pattern.sub(form, own)
    # A word before `::` is a namespace, or a function that holds the lambda that is meant.
    arguments = re.findall(r"[A-Za-z_]\w*(?!\w*::)", _template_arguments(plain))
    telling = next((w for w in arguments if w not in _FILLER and len(w) > 2), None)
    if telling and own in _WRAPPERS:
        return visible(telling if telling.startswith("cutlass") else f"cutlass {own}<{telling}>", 80)
    return visible(f"{own}<{telling}>" if telling else own, 80)


def _template_arguments(name: str) -> str:
    """What stands in the `<…>` after the function's own name; parameters repeat it and are left out."""
    start = name.find("<")
    depth = 0
    for at in range(start, min(len(name), start + 2000)) if start >= 0 else ():
        if name[at] == "<":
            depth += 1
        elif name[at] == ">" and name[at - 1] != "-":
            depth -= 1
            if depth == 0:
                return name[start + 1 : at]
    return name[start + 1 : start + 2000] if start >= 0 else ""


def _outside_brackets(name: str) -> str:
    """The part of a signature outside `<…>` and before the parameter list."""
    depth, kept = 0, []
    for char in name:
        if char in "<[{":
            depth += 1
        elif char in ">]}":
            depth = max(depth - 1, 0)
        elif depth == 0:
            if char == "(":
                break
            kept.append(char)
    return "".join(kept)


# What ncu's printed names leave out: namespaces, and the types of template arguments that are numbers.
_QUALIFIER = re.compile(r"(?:<unnamed>|unnamed>|\(anonymous namespace\)|\b[A-Za-z_]\w*)::")
_NUMBER_TYPE = re.compile(r"\((?:(?:unsigned|signed)\s+)?[A-Za-z_]\w*(?:\s+[a-z]+)*\)(?=-?\d)")


def printed_form(name: str) -> str:
    """A form in which a kernel's full name and the simplified name ncu prints for it are equal."""
    text = _NUMBER_TYPE.sub("", name)
    text = _QUALIFIER.sub("", text)
    return re.sub(r"\s+", "", text)
