"""A second process that goes through chunks of a large PyTorch trace, while the reader takes what is in others.

It is a fork of the reader, made before the reader has threads, with the same limits. A chunk goes to it through memory
that both see; what was found comes back as recordings do (`handover`). It only makes things faster: nothing depends
on what it saw before, and what it cannot do, or does no longer because it ended, the reader does itself.
"""

from __future__ import annotations

import contextlib
import gc
import json
import mmap
import os
import select
import signal
from collections.abc import Iterator
from typing import IO

import attrs

from llm_perf_opt.readers import handover
from llm_perf_opt.readers.kineto_code import Found
from llm_perf_opt.readers.kineto_sieve import Layout, Sieve
from llm_perf_opt.readers.sandbox import leave, memory_file

_SLOTS = 2  # chunks that it has at a time: one more than it works on
_ROOM = 8 << 20  # bytes of a chunk
_WORTH_IT = 64 << 20  # bytes of JSON: below, the reader is done by the time a process has begun


@contextlib.contextmanager
def helper_for(size: int) -> Iterator[Helper | None]:
    """For a trace of so many bytes; None where it would be of no use."""
    if size < _WORTH_IT or not hasattr(os, "fork") or _processors() < 2:
        yield None
        return
    with contextlib.closing(Helper()) as helper:
        yield helper


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Helper:
    """Does chunks in the order in which it is given them."""

    def __init__(self) -> None:
        self._texts = mmap.mmap(-1, _SLOTS * _ROOM)
        self._answers = [memory_file() for _ in range(_SLOTS)]
        self._free = list(range(_SLOTS))
        orders, self._orders = os.pipe()
        self._done, done = os.pipe()
        reader = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                gc.freeze()  # what is there already is not gone through, and so not copied
                leave(reader, orders, done, *(answer.fileno() for answer in self._answers))
                _help(orders, done, self._texts, self._answers)
            finally:
                os._exit(0)
        os.close(orders)
        os.close(done)
        self._heard = os.fdopen(self._done, "rb")

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._orders)
        self._heard.close()
        for answer in self._answers:
            answer.close()

    def give(self, chunk: bytes, layout: Layout) -> int | None:
        """Where its answer will be; None where it is busy, or has ended."""
        if not self._free or len(chunk) > _ROOM:
            return None
        slot = self._free.pop()
        self._texts[slot * _ROOM : slot * _ROOM + len(chunk)] = chunk
        order = [slot, len(chunk), layout[0].decode("latin-1"), layout[1]]
        try:
            os.write(self._orders, json.dumps(order).encode("ascii") + b"\n")
        except BrokenPipeError:  # the slot stays taken, and so do the others in time
            return None
        return slot

    def has_answered(self) -> bool:
        return bool(select.select([self._heard], [], [], 0)[0])

    def answer(self, slot: int) -> Found | None:
        """What was found in the chunk it has had longest; None where the reader has to look for itself."""
        line = self._heard.readline()
        said = json.loads(line) if line else None
        return Found(**handover.read(self._answers[slot].fileno(), *said)) if said else None

    def free(self, slot: int) -> None:
        """Its answer is not needed any more."""
        self._free.append(slot)


def _help(orders: int, done: int, texts: mmap.mmap, answers: list[IO[bytes]]) -> None:
    """Until there are no more orders."""
    sieves: dict[Layout, Sieve] = {}
    with os.fdopen(orders, "rb") as lines:
        for line in lines:
            slot, length, lead, category = json.loads(line)
            layout = lead.encode("latin-1"), category
            sieve = sieves.setdefault(layout, Sieve(*layout))
            said = None
            # Whatever is wrong with a chunk, the reader will find it too, and say so.
            with contextlib.suppress(Exception):
                found = sieve(texts[slot * _ROOM : slot * _ROOM + length])
                if found is not None:
                    answers[slot].seek(0)
                    said = handover.write(attrs.asdict(found, recurse=False), answers[slot])
            os.write(done, json.dumps(said).encode("ascii") + b"\n")
