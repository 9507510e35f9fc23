"""Options of programs that serve until they are ended: which part of the run is taken, and the load they are put under."""

from __future__ import annotations

from typing import Any

from llm_perf_opt.options.option import Option

_SERVE = ("measure", "profile")  # verbs that may run a server

SERVING: tuple[Option[Any], ...] = (
    Option(
        flag="--window", kind="count", metavar="N", verbs=_SERVE, to="serving.window",
        help="Of a server: end it after N steps once it serves.",
    ),
    Option(
        flag="--window-after", metavar="TIME|TEXT", verbs=_SERVE, to="serving.after",
        help="Of a server: count from this time on, as in 60s, or from when it prints this text.",
    ),
    Option(
        flag="--load", kind="count", metavar="N", verbs=_SERVE, to="serving.load",
        help="Send N requests to the server, which has to speak OpenAI's protocol on this machine.",
    ),
    Option(
        flag="--concurrency", kind="count", default=8, metavar="C", verbs=_SERVE, to="serving.concurrency",
        help="With --load: requests under way at once.",
    ),
    Option(
        flag="--prompt-tokens", kind="count", default=512, metavar="P", verbs=_SERVE, to="serving.prompt_tokens",
        help="With --load: words of each prompt, about a token each.",
    ),
    Option(
        flag="--output-tokens", kind="count", default=128, metavar="O", verbs=_SERVE, to="serving.output_tokens",
        help="With --load: tokens of each answer.",
    ),
    Option(
        flag="--url", default="http://127.0.0.1:8000", metavar="URL", verbs=_SERVE, to="serving.url",
        help="With --load: where the server listens.",
    ),
    Option(
        flag="--load-model", metavar="NAME", verbs=_SERVE, to="serving.load_model",
        help="With --load: the model to ask for (default: the first that the server lists).",
    ),
    Option(
        flag="--keep", kind="switch", default=False, verbs=_SERVE, to="serving.keep",
        help="Let the server go on when the window is closed; Ctrl-C ends it, and the report is built.",
    ),
    Option(
        flag="--server-counters", kind="switch", default=False, verbs=("profile",), to="serving.counters",
        help="Take counters of the server, too, of a few steps: ncu makes every request wait meanwhile.",
    ),
    Option(
        flag="--load-command", metavar="CMD", verbs=_SERVE, to="serving.load_command",
        help="Start a load generator of your own once the server serves; when it ends, the server is ended.",
    ),
)  # fmt: skip
