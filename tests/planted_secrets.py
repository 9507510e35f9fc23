"""A hundred secrets in twenty spellings, and the search for them: for the tests and for benchmarks/safe_hands_secrets.py."""

from __future__ import annotations

import base64
import gzip
import json
import lzma
import random
import string
from collections.abc import Callable, Iterator
from pathlib import Path

# Words of a command line.
ARGUMENTS: dict[str, Callable[[str], list[str]]] = {
    "-p S": lambda s: ["-p", s],
    "-pS": lambda s: [f"-p{s}"],
    "--pass S": lambda s: ["--pass", s],
    "--db-pw S": lambda s: ["--db-pw", s],
    "--token=S": lambda s: [f"--token={s}"],
    "Authorization: Bearer S": lambda s: ["-H", f"Authorization: Bearer {s}"],
    '{"password": "S"}': lambda s: ["--login", json.dumps({"user": "me", "password": s})],
    "password: S": lambda s: ["--yaml", f"user: me\npassword: {s}"],
    "redis://:S@h": lambda s: ["--cache", f"redis://:{s}@cache:6379/0"],
    "https://u:S@h": lambda s: [f"https://me:{s}@example.org/x"],
    "https://h?sig=S": lambda s: ["--blob", f"https://store.example.org/a?sv=2024&sig={s}"],
    "a webhook": lambda s: ["--notify", f"https://hooks.slack.com/services/T01/B02/{s}"],
    "KEY=S": lambda s: [f"KEY={s}"],
    "a.b.token=S": lambda s: [f"+model.hub.token={s}"],
    "--prompt 'a sentence'": lambda s: ["--prompt", f"my code is {s}, keep it"],
}
# Variables of the environment.
VARIABLES: dict[str, Callable[[str, int], tuple[str, str]]] = {
    "X_TOKEN": lambda s, n: (f"HF_{n}_TOKEN", s),
    "REDIS_URL": lambda s, n: (f"REDIS_URL_{n}", f"redis://:{s}@cache:6379/0"),
    "STRIPE_SK": lambda s, n: (f"STRIPE_SK_{n}", s),
    "CREDS": lambda s, n: (f"CREDS_{n}", f"me:{s}"),
    "AZURE_SAS_URL": lambda s, n: (f"AZURE_SAS_URL_{n}", f"https://store.example.org/a?sig={s}"),
}
SPELLINGS = (*ARGUMENTS, *VARIABLES)


def secrets(seed: int = 18, each: int = 5) -> dict[str, list[str]]:
    """Secrets of several kinds for every spelling."""
    chance = random.Random(seed)

    def some(letters: str, length: int) -> str:
        return "".join(chance.choices(letters, k=length))

    kinds = (
        lambda: some("0123456789abcdef", 40),
        lambda: some(string.ascii_letters + string.digits, 24),
        lambda: f"correct-horse-{some(string.digits, 4)}",
        lambda: f"hunter{some(string.digits, 3)}x",
        lambda: some(string.ascii_uppercase + "234567", 16),
    )
    return {spelling: [kinds[n % len(kinds)]() for n in range(each)] for spelling in SPELLINGS}


def planted(found: dict[str, list[str]]) -> tuple[list[str], dict[str, str]]:
    """Words of a command line and variables that hold them."""
    words = [word for name, spell in ARGUMENTS.items() for secret in found[name] for word in spell(secret)]
    pairs = (VARIABLES[name](secret, n) for name in VARIABLES for n, secret in enumerate(found[name]))
    return words, dict(pairs)


# A program that prints all it knows, as it is and encoded.
PROGRAM = """\
import base64, os, sys
known = [*sys.argv[1:], *(f"{name}={value}" for name, value in os.environ.items())]
for text in known:
    print(text)
    print("encoded:", base64.b64encode(text.encode()).decode(), text.encode().hex())
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-16-le") + b"\\n")
    sys.stdout.buffer.flush()
raise SystemExit(3 if os.environ.get("FAILS") else 0)
"""


def left_in(folder: Path, found: dict[str, list[str]], *, encoded: bool = False) -> Iterator[tuple[str, str, str]]:
    """File, spelling and secret, for every secret that is in a file; `encoded`: also in another form."""
    for file in sorted(folder.rglob("*")):
        if not file.is_file():
            continue
        data = file.read_bytes() + str(file).encode()
        unpack = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(file.suffix)
        data += unpack(file.read_bytes()) if unpack else b""
        for spelling, some in found.items():
            for secret in some:
                if any(form in data for form in forms(secret, encoded)):
                    yield str(file.relative_to(folder)), spelling, secret


def forms(secret: str, encoded: bool) -> list[bytes]:
    plain = secret.encode()
    if not encoded:
        return [plain]
    shifted = [base64.b64encode(bytes(n) + plain)[4 if n else 0 : -4] for n in range(3)]
    return [plain, plain.hex().encode(), secret.encode("utf-16-le"), *shifted]
