"""A program under llm-perf reads what it would read alone, in each of its runs."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from llm_perf_opt.process.given_input import GivenInput


def all_of(number: int) -> bytes:
    with os.fdopen(number, "rb") as file:
        return file.read()


def test_a_file_is_read_from_where_it_stood_and_stays_there(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"first\nsecond\nthird\n")
    with (tmp_path / "in").open("rb", buffering=0) as file:
        file.read(6)
        given = GivenInput(file.fileno())
        assert [all_of(given.open()) for _ in range(3)] == [b"second\nthird\n"] * 3
        assert file.read() == b"second\nthird\n"  # of whoever started us, such as a shell with its script


def test_what_was_piped_is_read_by_every_run() -> None:
    out, into = os.pipe()
    os.write(into, b"prompts" * 5_000)
    os.close(into)
    given = GivenInput(out)
    assert [all_of(given.open()) for _ in range(3)] == [b"prompts" * 5_000] * 3
    os.close(out)


def test_nothing_is_taken_that_the_program_does_not_read() -> None:
    out, into = os.pipe()
    os.write(into, b"rest of the script")
    os.close(into)
    given = GivenInput(out)
    for _ in range(2):
        os.close(given.open())
    assert all_of(out) == b"rest of the script"


def test_a_pipe_into_which_somebody_still_writes_goes_to_the_first_run() -> None:
    out, into = os.pipe()
    os.write(into, b"one")
    given = GivenInput(out)
    first = given.open()
    os.write(into, b" two")
    os.close(into)
    assert (all_of(first), all_of(given.open())) == (b"one two", b"")
    os.close(out)


def test_a_socket_is_passed_on_and_what_cannot_be_read_again_is_not() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"hello")
        theirs.shutdown(socket.SHUT_WR)
        assert all_of(GivenInput(ours.fileno()).open()) == b"hello"
    leader, terminal = os.openpty()
    assert GivenInput(terminal).open() == subprocess.DEVNULL
    for number in (leader, terminal):
        os.close(number)
    assert GivenInput(terminal).open() == subprocess.DEVNULL  # closed, as with `<&-`
