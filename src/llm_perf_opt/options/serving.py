"""Options of programs that serve until they are ended: which part of the run is taken, and the load they are put under."""

from __future__ import annotations

from typing import Any

from llm_perf_opt.options.option import Option

_SERVE = ("measure", "profile")  # verbs that may run a server

SERVING: tuple[Option[Any], ...] = (
    Option(
        flag="--window", kind="count", metavar="N", verbs=_SERVE, to="serving.window",
        help="For a server: end it N steps after it is ready.",
    ),
    Option(
        flag="--window-after", metavar="TIME|TEXT", verbs=_SERVE, to="serving.after",
        help="For a server: start counting after this time, such as 60s, or when it prints this text.",
    ),
    Option(
        flag="--load", kind="count", metavar="N", verbs=_SERVE, to="serving.load",
        help="Send N requests to the server, which must run on this machine and speak the OpenAI protocol.",
    ),
    Option(
        flag="--concurrency", kind="count", default=8, metavar="C", verbs=_SERVE, to="serving.concurrency",
        help="With --load: number of concurrent requests.",
    ),
    Option(
        flag="--prompt-tokens", kind="count", default=512, metavar="P", verbs=_SERVE, to="serving.prompt_tokens",
        help="With --load: words per prompt, about one token each.",
    ),
    Option(
        flag="--output-tokens", kind="count", default=128, metavar="O", verbs=_SERVE, to="serving.output_tokens",
        help="With --load: tokens per answer.",
    ),
    Option(
        flag="--url", default="http://127.0.0.1:8000", metavar="URL", verbs=_SERVE, to="serving.url",
        help="With --load: address of the server.",
    ),
    Option(
        flag="--load-model", metavar="NAME", verbs=_SERVE, to="serving.load_model",
        help="With --load: model to request (default: the first that the server lists).",
    ),
    Option(
        flag="--keep", kind="switch", default=False, verbs=_SERVE, to="serving.keep",
        help="Keep the server running after the window closes; Ctrl-C ends it and builds the report.",
    ),
    Option(
        flag="--server-counters", kind="switch", default=False, verbs=("profile",), to="serving.counters",
        help="Also collect counters of a few steps of the server; every request waits for ncu meanwhile.",
    ),
    Option(
        flag="--load-command", metavar="CMD", verbs=_SERVE, to="serving.load_command",
        help="Start your own load generator once the server is ready; when it exits, the server is ended.",
    ),
)  # fmt: skip
