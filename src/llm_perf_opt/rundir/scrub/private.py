"""What a recording knows about its owner, and how to take it out of texts and bytes.

Secrets are learnt from the recordings themselves: they hold the environment and the command line of the
program. A value is looked for everywhere afterwards, so one that is an ordinary word or a number of a few
digits is not: it would be found in every file. Its own variable is removed all the same.
"""

from __future__ import annotations

import html
import json
import mmap
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

from attrs import Factory, define

from llm_perf_opt.rundir.command_lines import hidden_values
from llm_perf_opt.rundir.plain_values import is_plain
from llm_perf_opt.rundir.secrets import (
    REMOVED,
    SECRET_IN_TEXT,
    is_kept_variable,
    is_secret,
    parts_of,
    without_secret_text,
)

HOST, USER = "(host)", "(user)"

_USER_VARIABLES = ("USER", "LOGNAME", "USERNAME", "SUDO_USER")
_HOST_VARIABLES = ("HOSTNAME", "HOST", "COMPUTERNAME")
_COMMON_NAMES = {"root", "user", "users", "ubuntu", "admin", "nobody", "home", "python", "nvidia", "cuda", "default"}
_COMMON_HOSTS = {"localhost", "local", "(none)", "host", "linux", "ubuntu", "debian"}
_FOLDER = re.compile(r"^/(?:home|root|tmp|usr|etc|var|opt|run|mnt|data|proc|dev|workspace|srv)(?:/|$)")
_END_OF_FOLDER = r"(?=[/\\\"'\s:,;)\]}<&\x00]|$)"
# Homes that no environment names.
_ANY_HOME = r"(?:/home/|/Users/)[^/\\\s\"':,;)\]}<&\x00-\x1f]+|/root"
# A text of JSON with escapes that could stand for any character.
_ESCAPED = re.compile(r'"(?:[^"\\\n]|\\[^u/\n])*\\[u/](?:[^"\\\n]|\\.)*"')
_LONGEST_SECRET = 16_384
_IN_PAGE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def _is_ordinary(value: str) -> bool:
    """Could it be in every second environment? A secret is not: it would be found in every log."""
    return is_plain(value) or value.startswith(("/", "(", "\x1b"))


def is_distinctive(value: str) -> bool:
    """Whether a secret can be looked for: nothing else in a recording would be the same by chance."""
    if len(value) < 6 or _FOLDER.match(value) or re.fullmatch(r"\w+://[^@\s]*", value):
        return False
    return not (value.isdigit() and len(value) < 8) and not (value.isalpha() and len(value) < 12)


def without_folders(path: str) -> str:
    """A source file of somebody's machine: its name is enough, or its path in a package."""
    _, installed, below = path.rpartition("-packages/")
    return below if installed else path.rpartition("/")[2]


@define
class Private:
    """What must not be in a copy."""

    secrets: dict[str, str] = Factory(dict)  # value → the variable or option it is the value of
    homes: dict[str, None] = Factory(dict)
    users: dict[str, None] = Factory(dict)
    hosts: dict[str, None] = Factory(dict)
    files: dict[str, str] = Factory(dict)  # source files of the program: path → what is said instead
    variables: set[str] = Factory(set)  # names of all variables that were seen

    def learn_environment(self, environment: Mapping[str, str]) -> None:
        """An environment, of this shell or of a recording."""
        for name, value in environment.items():
            self.variables.add(name)
            if is_secret(name, value):
                self._learn(parts_of(value), name)
            elif not is_kept_variable(name, value) and not _is_ordinary(value):
                self._learn([value], name)
            if name in _USER_VARIABLES:
                self.learn_user(value)
            if name in _HOST_VARIABLES:
                self.learn_host(value)
        home = environment.get("HOME", "")
        if home.count("/") > 1 and len(home) > 4:
            self.homes[home.rstrip("/")] = None

    def learn_command(self, argv: list[str], *, show: bool = False) -> None:
        """A command line: what is hidden in it is a secret. `show`: as in `clean_argv`."""
        for value, name in hidden_values(argv, show=show):
            self._learn([value], f"{name} of the command line")

    def _learn(self, values: Iterable[str], name: str) -> None:
        for value in values:
            if is_distinctive(value) and len(value) <= _LONGEST_SECRET:
                self.secrets.setdefault(value, name)

    def learn_user(self, name: str) -> None:
        if len(name) > 2 and name not in _COMMON_NAMES:
            self.users[name] = None

    def learn_host(self, name: str) -> None:
        if len(name) > 3 and name.lower() not in _COMMON_HOSTS:
            self.hosts[name] = None

    def learn_file(self, path: str) -> None:
        """A source file of the program."""
        if path.startswith("/"):
            self.files[path] = without_folders(path)

    def as_json(self) -> dict[str, Any]:
        """All that is known, for another process."""
        names = {"homes": list(self.homes), "users": list(self.users), "hosts": list(self.hosts)}
        return {"secrets": self.secrets, "files": self.files, **names, "variables": sorted(self.variables)}

    def take_over(self, known: Mapping[str, Any]) -> None:
        """What another process has learnt."""
        for value, name in known["secrets"].items():
            self.secrets.setdefault(value, name)
        for mine, theirs in ((self.homes, "homes"), (self.users, "users"), (self.hosts, "hosts")):
            mine.update(dict.fromkeys(known[theirs]))
        self.files.update(known["files"])
        self.variables.update(known["variables"])

    def text(self, text: str, *, looks_secret: bool = True, page: bool = False) -> str:
        """A text without secrets, homes, users and hosts.

        `looks_secret`: also take out what only looks like a secret; not in reports, whose words are names of
        regions and kernels. `page`: it is part of one.
        """
        return _ESCAPED.sub(lambda found: self._json_text(found[0], looks_secret, page), self._text(text, looks_secret))

    def _json_text(self, written: str, looks_secret: bool, page: bool) -> str:
        """A text of JSON by what it means, not by how it is written; as it was where nothing in it is private."""
        try:
            meant = str(json.loads(written))
        except ValueError:
            return written
        cleaned = self._text(meant, looks_secret)
        if cleaned == meant:
            return written
        again = json.dumps(cleaned)
        return "".join(_IN_PAGE.get(character, character) for character in again) if page else again

    def _text(self, text: str, looks_secret: bool) -> str:
        for secret in sorted(self.secrets, key=len, reverse=True):
            for form in _forms(secret):
                text = text.replace(form, REMOVED)
        if looks_secret:
            text = without_secret_text(text)
        for file in sorted(self.files, key=len, reverse=True):
            text = text.replace(file, self.files[file])
        text = self._homes().sub("~", text)
        for user in self.users:
            text = re.sub(rf"(?<=/){re.escape(user)}{_END_OF_FOLDER}", USER, text)
            text = re.sub(rf"(?<![\w.-]){re.escape(user)}(?=@)", USER, text)
        for host in sorted(self.hosts, key=len, reverse=True):
            text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", HOST, text)
        return text

    def page(self, text: str) -> str:
        """A page of ours. Its script and style are the same in every page, and run only as long as they are."""
        parts = re.split(r"(<(?:script|style)>.*?</(?:script|style)>)", text, flags=re.DOTALL)
        return "".join(
            part if i % 2 else self.text(part, looks_secret=False, page=True) for i, part in enumerate(parts)
        )

    def masked(self, value: bytes) -> bytes:
        """The same number of bytes, with what is private crossed out: for formats where nothing may move."""
        text = value.decode("utf-8", "surrogateescape")
        for secret in self.secrets:
            text = text.replace(secret, _crossed(secret))
        text = SECRET_IN_TEXT.sub(lambda found: _crossed(found[0]), text)
        text = re.sub(rf"(?:{self._homes().pattern})(?:(?:/[^/\s\"':,;\x00-\x1f]+)*/)?", _mask_folder, text)
        for name in (*self.users, *self.hosts):
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", _crossed(name), text)
        result = text.encode("utf-8", "surrogateescape")
        return result if len(result) == len(value) else b"x" * len(value)

    def learn_output(self, text: str) -> None:
        """A line of the program's output that one of our own texts quotes."""
        self._learn([text], "the output of the program")

    def found_in(self, data: bytes | mmap.mmap, *, encoded: bool = False) -> dict[str, str]:
        """Secrets that are in these bytes, as they are or as JSON and HTML write them: value → name.

        `encoded`: also in base64, hexadecimal, UTF-16 or quoted for an address.
        """
        found = {}
        for secret, name in self.secrets.items():
            forms = [form.encode("utf-8", "surrogateescape") for form in _forms(secret)]
            forms += _encoded(secret) if encoded else ()
            if any(data.find(form) >= 0 for form in forms):
                found[secret] = name
        return found

    def signs(self) -> list[bytes]:
        """Bytes without which there is nothing private in a message."""
        known = (*self.secrets, *self.homes, *self.users, *self.hosts)
        return [word.encode("utf-8", "surrogateescape") for word in (*known, "/home/", "/Users/", "/root")]

    def _homes(self) -> re.Pattern[str]:
        known = [re.escape(home) for home in sorted(self.homes, key=len, reverse=True)]
        return re.compile(rf"(?<![\w.~-])(?:{'|'.join([*known, _ANY_HOME])}){_END_OF_FOLDER}")


def environment_of(words: Iterable[str]) -> dict[str, str]:
    """NAME=value words as a mapping."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            found[name] = value
    return found


@lru_cache(maxsize=4096)
def _forms(secret: str) -> list[str]:
    """A value as it is, in JSON, in HTML, and in the data of a page."""
    in_json = [json.dumps(secret, ensure_ascii=ascii)[1:-1] for ascii in (True, False)]
    in_page = ["".join(_IN_PAGE.get(character, character) for character in form) for form in in_json]
    in_template = html.escape(secret, quote=False).replace("'", "&#39;").replace('"', "&#34;")
    in_html = [html.escape(secret), html.escape(secret, quote=False), in_template]
    return list(dict.fromkeys([secret, *in_json, *in_page, *in_html]))


def _encoded(secret: str) -> list[bytes]:
    """A value in other encodings, in base64 as it stands at any place of a longer text."""
    raw = secret.encode("utf-8", "surrogateescape")
    forms = [raw.hex().encode(), raw.hex().upper().encode(), quote(raw, safe="").encode(), quote_plus(raw).encode()]
    forms += [secret.encode(encoding, "surrogatepass") for encoding in ("utf-16-le", "utf-16-be")]
    for shift in range(3):
        for alphabet in (b64encode, urlsafe_b64encode):
            # Only the characters that do not depend on what stands before and behind.
            forms.append(alphabet(bytes(shift) + raw)[(0, 2, 3)[shift] :].rstrip(b"=")[: 4 * (len(raw) // 3) - 3])
    return [form for form in dict.fromkeys(forms) if len(form) >= 8]


def _crossed(text: str) -> str:
    return "x" * len(text.encode("utf-8", "surrogateescape"))


def _mask_folder(found: re.Match[str]) -> str:
    """Every folder below and including the home is crossed out; the file's own name stays."""
    return re.sub(r"[^/]+", lambda part: _crossed(part[0]), found[0])
