"""Requests to an OpenAI-compatible server on this machine, many at once, and how long their tokens take.

Nothing leaves the machine: a URL of another host is refused before anything is sent. What a server answers is
untrusted: of its stream only the moments of pieces of text are taken, and the counts of tokens where it gives them.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import random
import threading
import time
from typing import Any

import numpy as np
from attrs import Factory, define, field

from llm_perf_opt.options.values import local_address
from llm_perf_opt.regions.columns import Int64s
from llm_perf_opt.request import ServingRequest
from llm_perf_opt.untrusted import parse_json

_TEXT = "time people way water day part sound work place year live back give name good form say great help low"
WORDS = _TEXT.split()
_EXTRAS = {"ignore_eos": True, "stream_options": {"include_usage": True}}  # that some servers refuse
# Path, whether with extras, whether with the name of a model: transformers refuses any but that of its command line.
_WAYS = list(itertools.product(("/v1/completions", "/v1/chat/completions"), (True, False), (True, False)))
_NOT_UNDERSTOOD = tuple(f"HTTP {status}:" for status in (400, 404, 405, 422, 501))
_ANSWER_S = 600.0  # that a server may take for a piece of its answer
_KEY = "OPENAI_API_KEY"  # as all clients of this protocol have it; the server, which we start, is given it anyway
_PATIENCE_S = 180.0  # without a token of any request: a server whose engine has died keeps its connections
_LONGEST_LINE = 1 << 20  # bytes of a piece
_LARGEST = 1 << 22  # bytes of an answer that is no stream
_REASON = 1 << 12  # bytes of why a request was refused
_PERCENTILES = (50, 90, 99)
_TEXTS = ("content", "reasoning_content", "reasoning")
FIRST, BETWEEN, PIECES = "for a first token", "between two tokens", "between two pieces of text"
SEVERAL = 1.05  # tokens in a piece of a stream, from which on its pieces are not called tokens
_FIRST_TOKENS = 8  # of the answer to the request that is not counted


@define(frozen=True)
class Answered:
    """One request, by the clock of the client."""

    ttft_s: float | None  # until the first piece of text; None: the answer came in one piece
    total_s: float
    tokens: int  # that came
    read: int | None = None  # tokens of the prompt, as the server counts them
    moments: tuple[float, ...] = ()  # when it was sent, and when each piece of text came

    @property
    def tpot_s(self) -> float | None:
        """Between two tokens, after the first."""
        return (self.total_s - self.ttft_s) / (self.tokens - 1) if self.ttft_s is not None and self.tokens > 1 else None


@define(eq=False)
class LoadClient:
    """Sends requests until all are answered, or until it is stopped."""

    asked: ServingRequest
    answered: list[Answered] = Factory(list)
    failures: list[str] = Factory(list)
    began: float = 0.0
    ended: float = 0.0
    _stop: threading.Event = Factory(threading.Event)
    _lock: threading.Lock = Factory(threading.Lock)
    _left: int = 0
    _model: str = ""
    _way: tuple[str, bool, bool] = _WAYS[0]
    _is_understood: bool = False  # the server has answered what is sent this way
    _says_end: bool = False  # it says of an answer that it is over: one of which it does not has broken off
    _threads: list[threading.Thread] = Factory(list)
    _first: threading.Thread | None = None  # sends the request that is not counted
    _moved: float = 0.0  # when something came last
    _until: float = 0.0  # the same, once no more is expected
    _under_way: dict[int, int] = Factory(dict)  # pieces of answers that have come so far, by thread
    patience_s: float = _PATIENCE_S
    requests: int = field(init=False)
    _address: tuple[str, int, str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._address = local_address(self.asked.url)
        self._left = self.requests = self.asked.load or 0

    def is_ready(self) -> bool:
        """Whether the server answers; it may say which model it has."""
        try:
            status, text = self._ask("GET", "/v1/models", timeout=5.0)
            self._model = self.asked.load_model or _first_model(text)
            # A list of models that fails says nothing of the model that is served: transformers lists its cache.
            return status < 500 or self._ask("GET", "/health", timeout=5.0)[0] == 200
        except ConnectionRefusedError:
            return False
        except (ConnectionError, http.client.HTTPException):  # it speaks something else, as a load generator may
            return self.asked.load is None
        except OSError:
            return False

    @property
    def port(self) -> int:
        return self._address[1]

    def is_warm(self) -> bool:
        """Whether one request, which is not counted, has been answered or has failed: the first call sends it.

        Servers load models, set up caches and capture graphs at their first request; and it finds out what they
        understand.
        """
        if self._first is None:
            self._first = threading.Thread(target=self._send_first, daemon=True)
            self._first.start()
        return not self._first.is_alive()

    def _send_first(self) -> None:
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):  # those that count will tell
            self._request(random.Random(0), min(_FIRST_TOKENS, self.asked.output_tokens))  # noqa: S311 - words
        self._under_way.pop(threading.get_ident(), None)

    def start(self) -> None:
        if not self._model:
            self.is_ready()
        self.began = self._moved = time.monotonic()
        for number in range(min(self.asked.concurrency, self.requests)):
            self._threads.append(threading.Thread(target=self._work, args=(number,), daemon=True))
            self._threads[-1].start()

    @property
    def is_done(self) -> bool:
        return bool(self._threads) and not any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Send no more; of those under way, what has come so far counts."""
        if not self.is_done:
            self.ended = self._until or time.monotonic()
        self._stop.set()

    def gave_up(self) -> str:
        """Why no more is to be expected: nothing has come for minutes. Requests under way have failed, then."""
        still = time.monotonic() - self._moved
        if self.is_done or still < self.patience_s:
            return ""
        why = f"no token came for {still:.0f} s"
        self._until = self._moved  # the wait for nothing is no part of its throughput
        with self._lock:
            self.failures += [why] * sum(thread.is_alive() for thread in self._threads)
        return why

    def _work(self, number: int) -> None:
        while not self._stop.is_set():
            with self._lock:
                if not self._left:
                    break
                self._left -= 1
                turn = self.requests - self._left
            try:
                found: Answered | str = self._request(random.Random(turn), self.asked.output_tokens)  # noqa: S311
            except (OSError, ValueError, http.client.HTTPException) as error:
                found = f"{type(error).__name__}: {error}"
            with self._lock:
                if self._stop.is_set():  # the server was ended meanwhile
                    break
                self._under_way.pop(threading.get_ident(), None)
                self.ended = self._moved = time.monotonic()
                if isinstance(found, Answered):
                    self.answered.append(found)
                else:
                    self.failures.append(found)

    def _request(self, chosen: random.Random, tokens: int) -> Answered | str:
        """Send one; what it took, or why it failed. The first finds out what the server understands."""
        text, problem = " ".join(chosen.choices(WORDS, k=self.asked.prompt_tokens)), ""
        for way in (self._way, *(other for other in _WAYS if other != self._way)):
            path, extras, named = way
            if not named and self.asked.load_model:
                continue
            asked: dict[str, Any] = (
                {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
            )
            asked |= {"max_tokens": tokens, "stream": True, "temperature": 0}
            asked |= {"model": self._model} if named and self._model else {}
            found = self._stream(path, json.dumps({**asked, **(_EXTRAS if extras else {})}).encode())
            if isinstance(found, Answered):
                self._way, self._is_understood = way, True
                return found
            if not found.startswith(_NOT_UNDERSTOOD) or (self._is_understood and way == self._way):
                return found
            problem = problem or found
        return problem

    def _stream(self, path: str, body: bytes) -> Answered | str:
        began = time.monotonic()
        connection = self._connection(_ANSWER_S)
        try:
            headers = {"Content-Type": "application/json", **_key()}
            connection.request("POST", self._address[2] + path, body, headers)
            answer = connection.getresponse()
            if answer.status != 200:
                return f"HTTP {answer.status}: {_without_key(answer.read(_REASON).decode(errors='replace'))[:300]}"
            moments = [began]
            usage: Any = None
            is_over, whole = False, b""
            while (line := answer.readline(_LONGEST_LINE)) and not self._stop.is_set():  # no more: it is hung up
                if not line.startswith(b"data:"):
                    whole = (whole + line)[:_LARGEST]
                    continue
                if (piece := line[5:].strip()) == b"[DONE]":
                    is_over = True
                    continue
                told = parse_json(piece.decode(errors="replace"))
                if error := told.get("error") if isinstance(told, dict) else None:
                    return f"the server sent an error instead of text: {_without_key(json.dumps(error))[:300]}"
                usage = (told.get("usage") if isinstance(told, dict) else None) or usage
                is_over = is_over or bool(_choice(told).get("finish_reason"))
                if _has_text(told):
                    moments.append(time.monotonic())
                    self._moved = moments[-1]
                    if not self._stop.is_set():
                        self._under_way[threading.get_ident()] = len(moments) - 1
        finally:
            connection.close()
        if len(moments) < 2:
            return _in_one_piece(whole, time.monotonic() - began)
        if self._says_end and not is_over:
            return f"the answer broke off after {len(moments) - 1} pieces"
        self._says_end = is_over
        return Answered(
            *(moments[1] - began, moments[-1] - began),
            *(_count(usage, "completion_tokens") or len(moments) - 1, _count(usage, "prompt_tokens")),
            tuple(moments),
        )

    def _ask(self, method: str, path: str, timeout: float) -> tuple[int, str]:
        connection = self._connection(timeout)
        try:
            connection.request(method, self._address[2] + path, headers=_key())
            answer = connection.getresponse()
            return answer.status, answer.read(_LARGEST).decode(errors="replace")
        finally:
            connection.close()

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._address[0], self._address[1], timeout=timeout)

    def waits(self) -> dict[str, Int64s]:
        """Of all answers: from when to when a client waited for its first token, and for each after it, in ns."""
        with self._lock:
            seen = [(1e9 * np.array(found.moments)).astype(np.int64) for found in self.answered if found.moments]
        pairs = [np.column_stack([moments[:-1], moments[1:]]) for moments in seen]
        first, later = [found[:1] for found in pairs], [found[1:] for found in pairs]
        between = BETWEEN if self._tokens_per_piece < SEVERAL else PIECES
        return {name: np.concatenate(rows) for name, rows in ((FIRST, first), (between, later)) if rows}

    @property
    def _tokens_per_piece(self) -> float:
        """More than one where a server guesses tokens, or sends several at once."""
        streamed = [found for found in self.answered if found.moments]
        return sum(found.tokens for found in streamed) / max(sum(len(found.moments) - 1 for found in streamed), 1)

    def result(self) -> dict[str, Any]:
        """As `load.json` has it."""
        with self._lock:
            answered, failures = list(self.answered), list(self.failures)
        seconds = max(self.ended - self.began, 1e-9) if self.began else 0.0
        several = max(self._tokens_per_piece, 1.0)
        made = sum(found.tokens for found in answered) + round(several * sum(self._under_way.values()))
        read = [found.read for found in answered if found.read is not None]
        return {
            "url": self.asked.url,
            "requests": {"answered": len(answered), "failed": len(failures), "asked": self.requests},
            "concurrency": self.asked.concurrency,
            "prompt_tokens_mean": sum(read) / len(read) if read else None,
            "output_tokens": made,
            "tokens_per_piece": several if any(found.moments for found in answered) else None,
            "seconds": seconds,
            "output_tokens_per_s": made / seconds if seconds else None,
            "requests_per_s": len(answered) / seconds if seconds else None,
            "ttft_s": _percentiles([found.ttft_s for found in answered if found.ttft_s is not None]),
            "itl_s": _percentiles([later for found in answered for later in np.diff(found.moments[1:]).tolist()]),
            "tpot_s": _percentiles([found.tpot_s for found in answered if found.tpot_s is not None]),
            "e2e_s": _percentiles([found.total_s for found in answered]),
            "first_failure": failures[0][:300] if failures else None,
        }


def _first_model(text: str) -> str:
    try:
        found = parse_json(text)
    except ValueError:
        return ""
    models = found.get("data") if isinstance(found, dict) else None
    name = models[0].get("id") if isinstance(models, list) and models and isinstance(models[0], dict) else ""
    return name if isinstance(name, str) else ""


def _choice(told: Any) -> dict[str, Any]:
    choices = told.get("choices") if isinstance(told, dict) else None
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _has_text(told: Any) -> bool:
    choice = _choice(told)
    said = [choice.get("delta"), choice.get("message")]  # of a stream, and of an answer in one piece
    pieces = [choice.get("text"), *(one.get(name) for one in said if isinstance(one, dict) for name in _TEXTS)]
    return any(isinstance(text, str) and text for text in pieces)


def _in_one_piece(text: bytes, seconds: float) -> Answered | str:
    """The answer of a server that does not stream: when it came is known, when its tokens were made is not."""
    try:
        told = parse_json(text.decode(errors="replace"))
    except ValueError:
        told = None
    if not _has_text(told):
        return "the answer held no text"
    usage = told.get("usage") if isinstance(told, dict) else None
    made = _count(usage, "completion_tokens")
    if not made:
        return "the answer came in one piece, and does not say how many tokens it has"
    return Answered(None, seconds, made, _count(usage, "prompt_tokens"))


def _key() -> dict[str, str]:
    key = os.environ.get(_KEY, "").strip()
    return {"Authorization": f"Bearer {key}"} if key and key.isascii() and key.isprintable() else {}


def _without_key(text: str) -> str:
    key = os.environ.get(_KEY, "").strip()
    return text.replace(key, "(hidden)") if key else text


def _count(usage: Any, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and 0 <= value < 1 << 40 else None


def _percentiles(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    found = np.percentile(values, _PERCENTILES).tolist()
    return {
        **{f"p{which}": value for which, value in zip(_PERCENTILES, found, strict=True)},
        "mean": float(np.mean(values)),
    }
