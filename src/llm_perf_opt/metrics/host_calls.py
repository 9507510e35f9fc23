"""What calls of the CUDA API and names of host code mean for a GPU that waits: one table of patterns."""

from __future__ import annotations

import re
from functools import lru_cache

# The first that fits. `cudaMemcpy_v3020` waits for what was launched before it, `cudaMemcpyAsync` often does.
_CALLS = (
    ("launch", re.compile(r"Launch(?!HostFunc)")),
    ("sync", re.compile(r"Synchronize")),
    ("copy", re.compile(r"Mem(cpy|set)|Prefetch", re.IGNORECASE)),
    (
        "alloc",
        re.compile(r"Malloc|MemAlloc|HostAlloc|HostRegister|MemCreate|MemMap|MemSetAccess|MemPool|Free|MemRelease"),
    ),
    (
        "module",
        re.compile(
            r"(Module|Library)(Load|Unload|Get)|cuLink|KernelGet|KernelSet|FuncGet|FuncSet|GetFuncBySymbol|GraphInstantiate|cuInit|ProcAddress|CtxCreate|PrimaryCtx|StreamCreate|SetDevice"
        ),
    ),
)
WAITING_CALLS = ("sync", "copy")  # work that ends while a thread is in one of them may have been waited for

# Names of ranges, operators and functions that fetch or prepare input.
_INPUT = re.compile(
    r"data[ _-]?load|load[ _-]?(batch|data|input|sample|image|audio|video)"
    r"|(next|fetch|read)[ _-]?(batch|data|input|sample|image|audio|video)s?\b|get[ _-]?batch|input[ _-]?pipeline"
    r"|(?<!runner: )pre[ _-]?process(?!\w*logits)"  # vLLM calls what it does before each step so
    r"|\bcollate|_collate|data[ _-]?(fetch|read|wait|time)|(?<!de)tokeni[sz](e|ing)\b|decode[ _-]?(image|jpe?g|audio|video)"
    r"|torch/utils/data/|webdataset|\bdali\b",
    re.IGNORECASE,
)

# Names of ranges and operators that compile. `CompiledFxGraph` and the like are what was compiled before.
_COMPILES = re.compile(r"compil(e(?!d)|ing\b|ation)|autotun|nvrtc|codegen", re.IGNORECASE)

# Operators in which cuDNN plans for a length that it has not seen.
_PLANS = re.compile(r"_cudnn_attention(_forward|_backward)?\b")

# Functions in which a thread does nothing but wait for another one, for a message or for a time.
_WAITS = re.compile(
    r"\b(queue|threading|selectors|multiprocessing/\w+|concurrent/futures/\w+)\.py\(\d+\): "
    r"_?(get|put|wait|wait_for_tstate_lock|acquire|join|select|poll|recv|recv_bytes|result)\b"
    r"|\b(zmq/\w+/(socket|poll)|socket|ssl)\.py\(\d+\): (recv\w*|poll|accept|read\w*)\b"
    r"|<built-in (method|function) (acquire|wait|poll|select|recv|recv_into|get|sleep)\b"
)


# Of the operating system, as they stand in a timeline: `read()`. Others tell nothing of a gap.
_SYSTEM = (
    ("data", re.compile(r"(p?readv?2?(64)?|preadv(64)?v?2?|fread(_unlocked)?|f?getline|fgets|io_getevents)\(\)")),
    (
        "wait",
        re.compile(
            r"(pthread_(cond_(timed|clock)?wait|join|(timed|try)join_np|barrier_wait|mutex_(timed|clock)?lock"
            r"|rwlock_(timed|clock)?(rd|wr)lock)|sem_(timed|clock)?wait|p?poll|p?select|epoll_p?wait2?|futex"
            r"|(clock_)?nanosleep|u?sleep|recv(from|m?msg)?|accept4?|wait(pid|id|[34])?|sigwait(info)?|sigtimedwait"
            r"|mq_(timed)?receive|msgrcv|connect|flock|getaddrinfo)\(\)"
        ),
    ),
    ("write", re.compile(r"(p?writev?(64)?|pwritev2?|fwrite(_unlocked)?|f(data)?sync|msync|sendfile(64)?)\(\)")),
)


@lru_cache(maxsize=4096)
def call_kind(name: str) -> str:
    """`launch`, `sync`, `copy`, `alloc`, `module` or `other`."""
    return next((kind for kind, pattern in _CALLS if pattern.search(name)), "other")


_OF_CUDA = re.compile(r"cu(da)?[A-Z]\w*")


def is_call(name: str) -> bool:
    """Is it a call of the CUDA API, by its name?"""
    return _OF_CUDA.fullmatch(name) is not None


@lru_cache(maxsize=4096)
def code_kind(name: str) -> str:
    """Of a range, operator or function: `data` where it reads or prepares input, `compile`, `plan`, `wait`, or nothing special.

    Of a call of the operating system also `write`.
    """
    start = name[:300]
    if start.endswith("()") and (of_system := [kind for kind, pattern in _SYSTEM if pattern.fullmatch(start)]):
        return of_system[0]
    found = ((_INPUT, "data"), (_COMPILES, "compile"), (_PLANS, "plan"), (_WAITS, "wait"))
    return next((kind for pattern, kind in found if pattern.search(start)), "")
