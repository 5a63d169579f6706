"""Tests as text: every `.rlm` file under `tests/` is one or more graphs with what is expected of them.

A file holds cases between `// -----` lines. What is done with a case stands in its `// RUN:` lines, or else in those
of the file's first case, as words that are carried out in order:

    verify           every invariant holds
    pass=a,b         these passes of `relume.pipeline.PASSES`, with every check after each
    lower            the program for AVX2 is what CHECK lines see
    run              carries out the `// run:` lines
    origins          what CHECK lines see has origins in it

and what is expected:

    // CHECK: ...                             on the printed graph or program, as the filecheck package has it
    %y = relu(%a)  // error: is not defined   on the guilty line: a part of the message. Errors of parsing and
                                              verifying must belong to that line; others have no line.
    // run: @main([1,-2]) == [1, 0]           on the reference and on compiled code; `~=` within 1e-5 of the largest
                                              value; `raises text` for a run that must fail; with states:
                                              @main([1]) states([0]) == [1] states([1])

Whatever parses is also printed and parsed again, with and without data and origins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from matching import has_checks, mismatch
from relume import Storage, api, pipeline, reference
from relume.base import targets
from relume.base.dtypes import DType
from relume.base.errors import RelumeError
from relume.graph import literals, passes, text, verify
from relume.graph.cursor import Cursor, TextError
from relume.graph.parser import Parser
from relume.graph.types import Function, Graph, Module, Node
from relume.kernels import KERNELS
from relume.ops import OPS
from relume.program.text import parse_program, print_program
from relume.program.types import Program

TOLERANCE = 1e-5
"""Of `~=`, relative to the largest expected value."""

WORDS = ("verify", "lower", "run", "origins")
_COMMENT = re.compile(r"//\s*([A-Za-z][A-Za-z-]*)(?:\d*)(?:\{LITERAL\})?:(?=\s|$)(.*)$")
_CHECK = re.compile(r"CHECK(-(DAG|NOT|EMPTY|NEXT|SAME|LABEL|COUNT-))?")


class CaseFailure(Exception):
    """A case did not do what its text says. `line` is the line in the file."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


@dataclass
class Case:
    """One case. `source` is padded with empty lines in front, so that its lines have the numbers of the file."""

    path: Path
    line: int
    source: str
    steps: tuple[str, ...] = ()
    errors: list[tuple[int, str]] = field(default_factory=list)
    runs: list[tuple[int, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        found = re.search(r'^\s*func @("[^"]*"|[\w./]+)', self.source, re.MULTILINE)
        return f"{found.group(1) if found else 'case'}:{self.line}"


def cases_of(path: Path) -> Iterator[Case]:
    """The cases of a file. Raises `CaseFailure` on a directive that does not exist."""
    lines = path.read_text(encoding="utf-8").split("\n")
    borders = [index for index, line in enumerate(lines) if line.strip() == "// -----"]
    default: tuple[str, ...] = ()
    for start, end in zip([-1, *borders], [*borders, len(lines)]):
        source = "\n" * (start + 1) + "\n".join(lines[start + 1 : end]) + "\n"
        case = Case(path, start + 2, source)
        steps: list[str] = []
        for number, line in enumerate(lines[start + 1 : end], start + 2):
            found = _COMMENT.search(line)
            if found is None:
                continue
            word, rest = found.group(1), found.group(2).strip()
            if word == "RUN":
                steps += _steps(number, rest)
            elif word == "error":
                case.errors.append((number, rest))
            elif word == "run":
                case.runs.append((number, rest))
            elif not _CHECK.fullmatch(word) and word.lower() in ("run", "error", "check", "checks", "errors"):
                raise CaseFailure(number, f"there is no directive {word!r}")
        default = default or tuple(steps)
        case.steps = tuple(steps) or default
        if not case.steps:
            raise CaseFailure(case.line, "neither this case nor the first of the file has a RUN line")
        yield case


def _steps(line: int, words: str) -> list[str]:
    for word in words.split():
        if word not in WORDS and not word.startswith("pass="):
            raise CaseFailure(line, f"RUN has no {word!r}; it has {', '.join(WORDS)} and pass=NAME,NAME")
    return words.split()


def check(case: Case) -> None:
    """Carries out a case. Raises `CaseFailure` where it is not as expected."""
    checks = has_checks(case.source)
    acts = [step for step in case.steps if step != "origins"]
    if not (checks or case.errors or acts == ["verify"] or ("run" in acts and case.runs)):
        raise CaseFailure(case.line, "this case expects nothing: it has no CHECK, error or run line")
    if case.runs and "run" not in acts:
        raise CaseFailure(case.runs[0][0], "there is a run line, but RUN has no `run`")
    if len(case.errors) > 1:
        raise CaseFailure(case.errors[1][0], "a case stops at its first error: there can be one error line only")
    output = _carried_out(case)
    if output is None:
        return
    if case.errors:
        raise CaseFailure(case.errors[0][0], f"there was no error; expected: {case.errors[0][1]}")
    if checks:
        complaint = mismatch(case.source, output, str(case.path))
        if complaint:
            raise CaseFailure(case.line, f"{complaint}\n--- what was matched ---\n{output}")


def _carried_out(case: Case) -> str | None:
    """The text that CHECK lines see; None where the expected error came."""
    parser = Parser(case.source, OPS, {})
    try:
        module = parser.module()
    except TextError as error:
        return _expected(case, error.line, error)
    round_trip(module)
    for fn in module.functions.values():
        complaint = verify.first_complaint(fn)
        if complaint is not None:
            return _expected(case, _line_of(parser, fn, complaint[1].place), _verify_error(fn))
    programs: list[Program] = []
    for step in case.steps:
        try:
            if step.startswith("pass="):
                module = _passed(case, module, step.removeprefix("pass=").split(","))
            elif step == "lower":
                programs = [pipeline.to_program(fn, targets.AVX2) for fn in module.functions.values()]
            elif step == "run":
                for line, command in case.runs:
                    run(module, line, command)
        except RelumeError as error:
            return _expected(case, None, error)
    for program in programs:
        data = {buffer.name: buffer.data for buffer in program.buffers if buffer.data is not None}
        if parse_program(print_program(program), KERNELS, data) != program:
            raise CaseFailure(case.line, f"the program does not round-trip:\n{print_program(program)}")
    if programs:
        return "\n".join(map(print_program, programs))
    return text.print_module(module, origins="origins" in case.steps)


def _passed(case: Case, module: Module, names: Sequence[str]) -> Module:
    for name in names:
        if name not in pipeline.PASSES:
            raise CaseFailure(case.line, f"there is no pass {name!r}; there are {', '.join(pipeline.PASSES)}")
    steps = [pipeline.PASSES[name] for name in names]
    held = {need for step in steps for need in step.needs}
    after = {name: passes.run(steps, fn, check=True, start=held) for name, fn in module.functions.items()}
    module = Module(after, module.source)
    round_trip(module)
    return module


def _line_of(parser: Parser, fn: Function, place: Node | Graph | None) -> int:
    return parser.headers[fn.name] if place is None else parser.where[place]


def _verify_error(fn: Function) -> RelumeError:
    try:
        verify.verify(fn)
    except RelumeError as error:
        return error
    raise AssertionError("first_complaint and verify disagree")


def _expected(case: Case, line: int | None, error: RelumeError) -> None:
    """Returns where this is the error that the case asks for."""
    if not case.errors:
        raise CaseFailure(line or case.line, f"there was an error:\n{error}") from error
    wanted_line, wanted = case.errors[0]
    if wanted not in _message(error):
        raise CaseFailure(wanted_line, f"the error is another one; expected: {wanted}\n{error}") from error
    if line is not None and line != wanted_line:
        raise CaseFailure(wanted_line, f"the error belongs to line {line}:\n{error}") from error


def _message(error: RelumeError) -> str:
    """What an error says, without the lines that it shows: those hold the expectation itself."""
    return f"{error.what}\nexpected: {error.expected}\ngot: {error.got}"


def round_trip(module: Module) -> None:
    """Raises `CaseFailure` unless the module survives printing and parsing, and prints the same afterwards."""
    arrays = {constant.digest: constant.data for fn in module.functions.values() for constant in fn.graph.constants()}
    for data in (False, True):
        printed = text.print_module(module, data=data, origins=True)
        again = text.parse_module(printed, OPS, {} if data else arrays)
        if again != module or text.print_module(again, data=data, origins=True) != printed:
            raise CaseFailure(1, f"the text does not round-trip:\n{printed}")


# --- run lines ------------------------------------------------------------------------------------------------------


class _Command(Cursor):
    """`@main([1,-2]) states([0]) == [1, 0] states([1])`, or `@main([9]) raises text`."""

    def values(self) -> list[object]:
        self.expect("(")
        return self.list_of(self.value, ")")

    def value(self) -> object:
        if self.accept("["):
            return self.list_of(self.value, "]")
        return self.match(re.compile(r"[^\s,\[\]()]+"), "a value").group()

    def outputs(self) -> list[object]:
        found = [self.value()]
        while self.accept(","):
            found.append(self.value())
        return found

    def states(self) -> list[object]:
        return self.values() if self.accept_word("states") else []


def array_of(value: object, dtype: DType) -> np.ndarray:
    """Nested lists of element texts as an array: the lists give the shape."""
    if isinstance(value, str):
        return literals.parse_element(value, dtype)
    parts = [array_of(part, dtype) for part in value]
    return np.stack(parts) if parts else np.zeros((0,), dtype.numpy)


def run(module: Module, line: int, command: str) -> None:
    """One run line, by the reference, and compiled with and without optimisation."""
    cursor = _Command(command)
    name = cursor.name("@")
    fn = module[name]
    inputs = [array_of(value, param.dtype) for param, value in zip(fn.inputs, cursor.values(), strict=True)]
    states = [array_of(value, param.dtype) for param, value in zip(fn.states, cursor.states(), strict=True)]
    if cursor.accept_word("raises"):
        wanted = command[cursor.at :].strip()
        for way, execute in _ways(module, fn):
            try:
                got = execute(inputs, states)
            except RelumeError as error:
                if wanted not in _message(error):
                    raise CaseFailure(line, f"{way} raises another error:\n{error}") from error
            else:
                raise CaseFailure(line, f"{way} raises nothing and gives {got}")
        return
    exact = cursor.accept("==")
    if not exact:
        cursor.expect("~=")
    expected = cursor.outputs(), cursor.states()
    cursor.skip()
    if cursor.at != len(command):
        raise CaseFailure(line, f"this stands behind the expected values: {command[cursor.at :]}")
    results = (*fn.outputs, *fn.next_states)
    wanted_arrays = [array_of(v, r.dtype) for r, v in zip(results, (*expected[0], *expected[1]), strict=True)]
    for way, execute in _ways(module, fn):
        for value, got, want in zip(results, execute(inputs, states), wanted_arrays, strict=True):
            if not _agree(got, want, exact):
                raise CaseFailure(line, f"{way} gives for {value.name}:\n{got!r}\nexpected:\n{want!r}")


def _agree(got: np.ndarray, want: np.ndarray, exact: bool) -> bool:
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    if exact:
        return bool(((got == want) | ((got != got) & (want != want))).all())
    wide, wanted = got.astype(np.float64), want.astype(np.float64)
    return bool((np.abs(wide - wanted) <= TOLERANCE * np.abs(wanted).max(initial=0)).all())


def _ways(module: Module, fn: Function) -> Iterator[tuple[str, object]]:
    def by_reference(inputs: list[np.ndarray], states: list[np.ndarray]) -> list[np.ndarray]:
        outputs, after = reference.evaluate(fn, inputs, states)
        return [*outputs, *after]

    yield "the reference", by_reference
    for level in (0, 1):

        def compiled(inputs: list[np.ndarray], states: list[np.ndarray], level: int = level) -> list[np.ndarray]:
            exe = api.compile(fn, threads=1, optimize=level, check=True, cache=False)
            names = [state.name for state in fn.states]
            storage = Storage(dict(zip(names, states))) if states else None
            outputs = exe.run({value.name: array for value, array in zip(fn.inputs, inputs)}, states=storage)
            return [*(outputs[name] for name in fn.output_names), *(storage[name] for name in names if storage)]

        yield f"compiled code (optimize={level})", compiled
