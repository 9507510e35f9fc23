"""Marks in the recording in which line of the program's own code each thread is, as far as a budget allows.

A sample every millisecond does not tell which line launched a kernel of ten microseconds; the line that a thread was in
when it called the launch does, and exactly. So every new line of the program's own code (not that of torch and other
libraries: `LLM_PERF_LINES` is the file with that rule) leaves an NVTX mark, which nsys puts on the clock of the launches:

    llm-perf:line 17 /home/me/train.py(33): step    what number 17 is, once
    llm-perf:17                                     from now on this thread is in it
    llm-perf:0                                      nothing is known any more, of any thread
    llm-perf:in DataLoader.__next__                 a function of a library that says more than the line that calls it
    llm-perf:out                                    its end
    llm-perf:made 18 aten.mul, aten.relu            line 18 is that of a compiled kernel, made from these operators

A mark takes 1.5 microseconds under nsys. After the first `_FIRST` of them there are pauses, so that they cost no more than a
per cent or two from then on; while a CUDA graph is captured there are none, because its kernels are launched only once.
From Python 3.12 on this is `sys.monitoring`, which costs libraries nothing; before, `sys.settrace`, and nothing is
marked after the first pause.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
import threading
import time
from functools import wraps
from types import CodeType, FrameType
from typing import Any, Callable, Optional

from . import compiled, imports, log
from .seen_ranges import MARKER

_FIRST, _LATER = 60_000, 2_000  # marks before the first pause, and between later ones
_PAUSE_S = 0.25
_SHARE = 0.01  # of the time, that switching on and off may take
_TOOL = 4  # a number that no well-known tool has
_OF_A_MARK = 0.02  # charged for a call that is only looked at: there may be millions before the first launch
_MOST_PLACES = 100_000

Mark = Callable[[str], Any]
_Known = tuple[CodeType, bool, Optional[str]]


class OwnCode:
    """Which code is the program's own."""

    def __init__(self, rule: Any) -> None:
        self._library, self._model = (re.compile("|".join(rule[kind])) for kind in ("library", "model"))
        self._named = {(str(end), str(function)): str(name) for end, function, name in rule["named"]}
        self._program = "\0"  # the folder of the package that was started, where that is installed as libraries are

    def owns(self, file: str) -> bool:
        return not self._library.search(file) or bool(self._model.search(file)) or file.startswith(self._program)

    def add_program(self, main: Any) -> None:
        """What `python -m package.train` runs, or a command that pip made for a package, is the program's own wherever
        it lies, unless it is known to be a library's."""
        spec, names = getattr(main, "__spec__", None), []
        if spec is not None:
            names = [spec.name]
        elif (getattr(main, "__file__", None) or "").rpartition(os.sep)[0] == sys.executable.rpartition(os.sep)[0]:
            names = [str(getattr(value, "__module__", "")) for value in vars(main).values() if callable(value)]
        for top in {name.partition(".")[0] for name in names}:
            folders = getattr(sys.modules.get(top), "__path__", ())
            if "-packages" in str(folders) and not self._library.search(f"{top}/"):
                self._program = next(iter(folders)) + os.sep

    def name_of(self, code: CodeType) -> str | None:
        """Of a function of a library that is worth its own name."""
        for (end, function), name in self._named.items():
            if code.co_name == function and code.co_filename.endswith(end):
                return name
        return None


class Lines:
    """Numbers the lines, marks them and keeps to the budget. Whoever notices that a line begins calls `enter`."""

    def __init__(self, own: OwnCode, mark: Mark) -> None:
        self.own, self._mark = own, mark
        self._files: dict[str, bool] = {}  # whether they are the program's own
        self._known: dict[int, _Known] = {}  # own or named, by id; the code is kept, so that ids stay
        self._generated: dict[int, compiled.Generated] = {}  # by id of the code
        self._texts: dict[tuple[int, int], str] = {}  # code and line -> text of its mark
        self._last = ""  # mark of the program's own code, on any thread
        self.left: float = _FIRST
        self.captures = 0  # CUDA graphs that are being captured
        self.on = False
        self.pause: Callable[[], None] = lambda: None
        self.go_on: Callable[[], None] = lambda: None
        self.never_again: Any = None  # the answer that a line need not be noticed any more

    def look_at(self, code: CodeType) -> _Known:
        """The code, whether it is the program's own, and the name it has where it is a library's."""
        known = self._known.get(id(code))
        if known is not None:
            return known
        own = self._files.get(code.co_filename)
        if own is None:
            own = self._files[code.co_filename] = self.own.owns(code.co_filename)
        known = (code, own, None if own else self.own.name_of(code))
        if not own and known[2] is None:
            return known
        if len(self._known) >= _MOST_PLACES:  # a program that makes code without end
            return code, False, None
        self._known[id(code)] = known
        return known

    def own_codes(self) -> list[_Known]:
        return list(self._known.values())

    def disown(self, file: str) -> None:
        """Whatever its name says, a file is not the program's own."""
        self._files[file] = False

    def add_generated(self, code: CodeType, generated: compiled.Generated) -> None:
        """Code that torch.compile wrote is marked, too, as the lines that it was made from."""
        if generated.changes and len(self._known) < _MOST_PLACES:
            self._generated[id(code)] = generated
            self._known[id(code)] = (code, True, None)

    def enter(self, code: CodeType, line: int) -> Any:
        """A line begins."""
        if not self.on:
            return None
        try:
            generated = self._generated.get(id(code))
            if generated is not None:
                if line not in generated.changes:
                    return self.never_again
                self._enter_generated(code, line, _frame_of(code))
                return None
            text = self._texts.get((id(code), line))
            if text is None:
                text = self._defined(code, line, f"{code.co_filename}({line}): {code.co_name}")
            self._last = text
            self._mark(text)
            self.charge(1)
        except Exception as error:
            self._failed(error)
        return None

    def _enter_generated(self, code: CodeType, line: int, frame: FrameType | None) -> None:
        origin = self._generated[id(code)].states.get(line)
        if origin is None:
            self.leave(None if frame is None else frame.f_back, code)
            return
        text = self._texts.get((id(code), line))
        if text is None:
            text = self._defined(code, line, origin.place, origin.operators)
        self._mark(text)
        self.charge(1)

    def _failed(self, error: Exception) -> None:
        """It must never reach the program."""
        self.on = False
        log.failed("marking the lines of the program", error, of="ranges")

    def charge(self, marks: float) -> None:
        """Pay for what costs as much as so many marks."""
        self.left -= marks
        if self.left <= 0 and not self.captures:
            self.stop()
            self.pause()

    def leave(self, frame: FrameType | None, code: CodeType) -> None:
        """A function returns to `frame`: the thread is in the line that called it, there or above."""
        try:
            while frame is not None:
                if self.look_at(frame.f_code)[1]:
                    self._return_to(frame)
                    return
                frame = frame.f_back
            if self.on and self._last and id(code) in self._generated:
                self._mark(self._last)  # autograd's thread: it works for the one that waits in `backward()`
                self.charge(1)
        except Exception as error:
            self._failed(error)

    def _return_to(self, frame: FrameType) -> None:
        if id(frame.f_code) not in self._generated:
            self.enter(frame.f_code, frame.f_lineno or 0)
        elif self.on:
            self._enter_generated(frame.f_code, frame.f_lineno or 0, frame)

    def enter_named(self, name: str) -> None:
        """A function with a name of its own begins."""
        if self.on:
            self._mark(f"{MARKER}in {name}")

    def leave_named(self) -> None:
        if self.on:
            self._mark(f"{MARKER}out")

    def stop(self) -> None:
        self.on = False
        self._mark(f"{MARKER}0")

    def _defined(self, code: CodeType, line: int, place: str, operators: str = "") -> str:
        if len(self._texts) >= _MOST_PLACES:
            return f"{MARKER}0"
        number = len(self._texts) + 1
        self._mark(f"{MARKER}line {number} {place}".encode("utf-8", "backslashreplace").decode())
        if operators:
            self._mark(f"{MARKER}made {number} {operators}".encode("utf-8", "backslashreplace").decode())
        text = self._texts[id(code), line] = f"{MARKER}{number}"
        return text


def _frame_of(code: CodeType) -> FrameType | None:
    """The innermost frame of this thread that runs the code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


class Monitored:
    """Through `sys.monitoring`: every function is looked at once, and lines are noticed in the program's own alone."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._api: Any = vars(sys)["monitoring"]
        events = self._api.events
        self._of_own = events.LINE | events.PY_RETURN | events.PY_YIELD
        self._of_named = (
            events.PY_RETURN
        )  # that they begin, and that an exception ends them, is noticed of all functions
        self._named: set[int] = set()  # ids of code
        self._thread: threading.Thread | None = None
        self._ended = False
        lines.pause, lines.go_on = self.pause, self.go_on
        lines.never_again = self._api.DISABLE

    def start(self) -> bool:
        api, events = self._api, self._api.events
        if api.get_tool(_TOOL) is not None:
            return False
        api.use_tool_id(_TOOL, "llm-perf")
        api.register_callback(_TOOL, events.LINE, self._lines.enter)
        api.register_callback(_TOOL, events.PY_START, self._begins)
        api.register_callback(_TOOL, events.PY_UNWIND, self._fails)
        for event in (events.PY_RETURN, events.PY_YIELD):
            api.register_callback(_TOOL, event, self._ends)
        for frame in list(sys._current_frames().values()):
            around: FrameType | None = frame
            while around is not None:
                self._lines.look_at(around.f_code)
                around = around.f_back
        self.go_on()
        api.set_events(_TOOL, events.PY_START | events.PY_UNWIND)
        return True

    def end(self) -> None:
        """For good: the program ends, or this is a child that it forked."""
        self._lines.on, self._ended = False, True
        self._api.set_events(_TOOL, 0)
        self._switch_off()

    def go_on(self) -> None:
        if self._ended:
            return
        self._lines.on = True
        for code, own, _ in self._lines.own_codes():
            self._api.set_local_events(_TOOL, code, self._of_own if own else self._of_named)

    def _switch_off(self) -> None:
        for code, _, _ in self._lines.own_codes():
            self._api.set_local_events(_TOOL, code, 0)

    def pause(self) -> None:
        self._switch_off()
        if self._thread is None:
            self._thread = threading.Thread(target=self._resume, name="llm-perf lines", daemon=True)
            self._thread.start()

    def _resume(self) -> None:
        pause = _PAUSE_S
        while not self._ended:
            time.sleep(pause)
            if not self._lines.on:
                self._lines.left = _LATER
                began = time.monotonic()
                self.go_on()
                # To switch on takes microseconds for every function of the program, and to switch off again.
                pause = max(_PAUSE_S, 2 * (time.monotonic() - began) / _SHARE)

    def _begins(self, code: CodeType, _offset: int) -> Any:
        _, own, name = self._lines.look_at(code)
        if self._lines.on and (own or name is not None):
            self._api.set_local_events(_TOOL, code, self._of_own if own else self._of_named)
        if name is None:
            return self._api.DISABLE  # each function has to be looked at once
        self._named.add(id(code))
        self._lines.enter_named(name)
        return None

    def _fails(self, code: CodeType, _offset: int, _error: object) -> None:
        """An exception ends a function: that of a `DataLoader` at the end of every epoch."""
        if id(code) in self._named:
            self._lines.leave_named()

    def _ends(self, code: CodeType, _offset: int, _value: object) -> None:
        if self._lines.look_at(code)[1]:
            self._lines.leave(sys._getframe(1).f_back, code)
        else:
            self._lines.leave_named()


class Traced:
    """Through `sys.settrace`, where no debugger has it: of the thread that begins, and of threads it starts."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        lines.pause = self.pause

    def start(self) -> bool:
        if sys.gettrace() is not None:
            return False
        self._lines.on = True
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if self._lines.look_at(frame.f_code)[1]:
                frame.f_trace = self._inside
            frame = frame.f_back
        threading.settrace(self._called)
        sys.settrace(self._called)
        return True

    def pause(self) -> None:
        """Give up what is still ours: the program may have set a tracer of its own since."""
        if vars(threading).get("_trace_hook") == self._called:  # `gettrace` is there from Python 3.10 on
            threading.settrace(None)
        if sys.gettrace() == self._called:
            sys.settrace(None)

    def end(self) -> None:
        self._lines.on = False
        self.pause()

    def _called(self, frame: FrameType, _event: str, _value: object) -> Any:
        if not self._lines.on:
            sys.settrace(None)
            return None
        _, own, name = self._lines.look_at(frame.f_code)
        if name is not None:
            self._lines.enter_named(name)
        elif not own:  # that libraries call functions costs here, too
            self._lines.charge(_OF_A_MARK)
        return self._inside if own else self._named if name is not None else None

    def _inside(self, frame: FrameType, event: str, _value: object) -> Any:
        if event == "line":
            self._lines.enter(frame.f_code, frame.f_lineno)
        elif event == "return":
            self._lines.leave(frame.f_back, frame.f_code)
        return self._inside if self._lines.on else None

    def _named(self, _frame: FrameType, event: str, _value: object) -> Any:
        if event == "return":
            self._lines.leave_named()
        return self._named if self._lines.on else None


active: Lines | None = None


def install(torch: Any, mark: Mark | None) -> None:
    """Begin when the program first uses the GPU. `mark`: writes a mark; None: there is nothing that could."""
    path = os.environ.get("LLM_PERF_LINES", "")
    if path in ("", "off") or mark is None:
        return
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is slow to import
        own = OwnCode(json.load(file))
    lines = Lines(own, mark)

    def begin() -> None:
        try:
            start(lines)
        except Exception as error:
            log.failed("marking the lines of the program", error, of="ranges")

    follow_compiled(lines)
    torch.cuda._lazy_call(begin)
    _follow_captures(torch.cuda, lines)


def start(lines: Lines) -> bool:
    """Mark lines from now on; False where another tool has what is needed for it."""
    global active
    lines.own.add_program(sys.modules["__main__"])
    watcher = Monitored(lines) if hasattr(sys, "monitoring") else Traced(lines)
    if watcher.start():
        active = lines
        os.register_at_fork(after_in_child=watcher.end)
        atexit.register(watcher.end)  # code that runs later, as objects are deleted, would find no modules
    return lines.on


def follow_compiled(lines: Lines) -> None:
    """Once torch.compile is used: know which line a compiled kernel comes from."""

    def into_codecache(module: Any) -> None:
        compiled.into_codecache(module, lines.own.owns, lines.disown, lines.add_generated)

    imports.when_imported({"torch._inductor.codecache": into_codecache})


def _follow_captures(cuda: Any, lines: Lines) -> None:
    """No pause while a graph is captured."""
    graph = getattr(cuda, "CUDAGraph", None)
    if graph is None:
        return
    begin, end = graph.capture_begin, graph.capture_end

    @wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        lines.captures += 1
        if active is lines and not lines.on:
            lines.go_on()
        try:
            return begin(self, *args, **kwargs)
        except BaseException:
            lines.captures = max(lines.captures - 1, 0)
            raise

    @wraps(end)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        lines.captures = max(lines.captures - 1, 0)
        return end(self, *args, **kwargs)

    graph.capture_begin, graph.capture_end = capture_begin, capture_end
