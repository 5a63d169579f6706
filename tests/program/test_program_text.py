"""Program text reads back, exactly, and errors name their line."""

from __future__ import annotations

import math
from keyword import iskeyword

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import KERNELS

from relume.base import dims, dtypes
from relume.base.errors import ModelError
from relume.base.locations import Location
from relume.program.plan import plan
from relume.program.text import parse_program, print_instr, print_program
from relume.program.types import Buffer, Instr, Operand, Port, Program, Space, View

TEXT = """program "main" {
  input 0 %x : f32[64*N]
  constant 0 %w.3f2a : f32[16]
  state 0 %s : f32[16]
  counter 0 %hits : i64[4]
  arena %h : f32[64*N] in %h
  arena %g : f32[64*N] in %h
  output 0 %y : f32[64*min(4, N)]
  bind input "image data" = %x [N,4,16]
  bind output "y" = %y [min(4, N),4,16]
  bind state "w" = %s [16]
  #0 map in %x [N,4,16] by [64,1,4], in %w.3f2a [N,4,16] by [0,0,1], out %h [N,4,16] {body=(("add", (0, 1), (), "f32"), ("cast", (2,), (("to", f32),), "f32")), outs=(2,)} // net.onnx:Conv_3
  #3 map in %h [64*N], out %g [64*N] {body=(), outs=(0,)} // "a net: x.onnx":"two words"
    reuses operand 0 for 1: %h is dead after this
  #4 window in %g [N,4,16] by [64,-16,1] at [48], out %y [min(4, N),4,16] {blocked=False, kind="max", window=(3,)} <N, ((N+1)//2), 7>
}
"""  # noqa: E501


def test_a_written_program_prints_as_it_stands() -> None:
    data = {"w.3f2a": np.arange(16, dtype=np.float32)}
    program = parse_program(TEXT, KERNELS, data)
    assert print_program(program) == TEXT
    assert parse_program(print_program(program), KERNELS, data) == program
    assert program.constants[0].data is data["w.3f2a"]


def test_blank_lines_and_comments_are_skipped() -> None:
    noisy = "// a program\n\n" + TEXT.replace("\n  #0", "\n\n  // first\n  #0")
    assert parse_program(noisy, KERNELS) == parse_program(TEXT, KERNELS)


_floats = st.floats(allow_nan=False)
_names = st.text("abcXYZ019_.-$", min_size=1, max_size=6)
_params = st.recursive(
    st.one_of(
        st.integers(), _floats, st.booleans(), st.text(max_size=8), st.sampled_from(dtypes.ALL), st.just(math.nan)
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True).filter(lambda name: not iskeyword(name)), _params
    ),
    st.builds(Location, st.text(min_size=1), st.text()),
    st.text(),
    _names,
    st.lists(st.sampled_from((3, dims.symbol("N") * -2 + 1, dims.parse("min(N, M)//4"), 0)), max_size=3),
)
def test_parameters_places_and_names_read_back_exactly(
    params: dict[str, object], place: Location, name: str, buffer_name: str, scalars: list[dims.Dim]
) -> None:
    buffer = Buffer(buffer_name, Space.INPUT, dtypes.i8, 7)
    instr = Instr(5, KERNELS["map"], (Operand("in", View(buffer, (7,), (1,))),), params, place, tuple(scalars))  # type: ignore[arg-type]
    program = Program(name, (Port(name, dtypes.i8, (7,), buffer),), (), (), (buffer,), (instr,))
    again = parse_program(print_program(program), KERNELS)
    assert again == program
    assert repr(dict(again.instrs[0].params)) == repr(dict(sorted(params.items()))), "-0.0, and True against 1"


def test_instructions_print_on_one_line() -> None:
    for instr in plan(parse_program(TEXT, KERNELS)).instrs:
        assert "\n" not in print_instr(instr)


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("map in %x", "mop in %x", 12, "there is no kernel 'mop'"),
        ("in %h [64*N], out", "in %q [64*N], out", 13, "there is no buffer %q"),
        ("%h : f32", "%h : f33", 6, "there is no element type 'f33'"),
        ("arena %g", "arena %h", 7, "there is a buffer %h already"),
        ("arena %g", "heap %g", 7, "a buffer, a binding or an instruction is missing"),
        ("by [64,1,4]", "by [64,1]", 12, "as many strides as extents"),
        ("by [64,1,4]", "by [64,1,/]", 12, "not a dim"),
        ('kind="max"', "kind=f(1)", 15, "these are no parameters"),
        ("out %g", "onto %g", 13, "`in`, `out` or `inout` is missing"),
        ("7>\n", "7> more\n", 15, "nothing more is expected"),
        ("\n}\n", "\n", 16, "the program does not end"),
        ("7>\n}\n", "7>\n}\n}\n", 17, "the program has ended"),
        ('program "main"', "program main", 1, "the program's name in quotes is missing"),
        ("f32[16]\n  state", "f32[4,4]\n  state", 3, "a run of elements"),
    ],
)
def test_errors_name_the_line(old: str, new: str, line: int, what: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(ModelError) as error:
        parse_program(TEXT.replace(old, new), KERNELS)
    assert f"line {line}:" in str(error.value)
    assert what in str(error.value)
