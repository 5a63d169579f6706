"""Shapes that may or may not go together are checked when they have values: before anything is computed."""

from __future__ import annotations

import numpy as np
import pytest

import relume
from relume.base.errors import InputError
from relume.base.requirements import AT_MOST, EQUAL, JOINS, Requirement, satisfying
from relume.ops.inference import requirements_of

f32 = np.float32

MISFITS = {
    "broadcast": ("%a : f32[p,q], %b : f32[r,q]", "%y = add(%a, %b)", [(300, 4), (2, 4)]),
    "broadcast of three": (
        "%a : f32[p], %b : f32[q], %c : f32[r]",
        "%d = add(%a, %b) %y = mul(%d, %c)",
        [(2,), (1,), (3,)],
    ),
    "broadcast of none": ("%a : f32[p], %b : f32[q]", "%y = add(%a, %b)", [(0,), (2,)]),
    "broadcast to": ("%a : f32[p]", "%y = broadcast(%a, dims=[2,6])", [(3,)]),
    "reshape": ("%a : f32[p,q]", "%r = reshape(%a, dims=[4000,4000]) %y = relu(%r)", [(1, 1)]),
    "reshape of a rest": ("%a : f32[p,q]", "%y = reshape(%a, dims=[p*q//4,4])", [(3, 5)]),
    "matmul": ("%a : f32[p,q], %b : f32[r,s]", "%y = matmul(%a, %b)", [(300, 4000), (2, 3000)]),
    "concat": ("%a : f32[p,q], %b : f32[r,s]", "%y = concat(%a, %b, axis=1)", [(3000, 4), (2, 3)]),
    "channels": (
        "%x : f32[n,c,h,w]",
        "%y = conv(%x, @w, strides=[1,1], pads=[0,0,0,0], dilations=[1,1], groups=1)",
        [(1, 2, 80, 80)],
    ),
    "slice": ("%a : f32[p]", "%y = slice(%a, starts=[0], stops=[7], steps=[1])", [(5,)]),
    "slice from before the first": (
        "%a : f32[p,q]",
        "%y = slice(%a, starts=[p-3,0], stops=[p,q], steps=[1,1])",
        [(2, 1)],
    ),
    "pad by less than nothing": ("%a : f32[p]", "%y = pad(%a, pads=[p-3,0], value=0.0)", [(2,)]),
    "a constant": ("%a : f32[n,c]", "%y = mul(%a, @c)", [(2, 7)]),
}


def model(params: str, body: str) -> relume.Module:
    constants = "const @w : f32[17,3,1,1] = random(1)\nconst @c : f32[3] = [1, 2, 3]"
    used = "\n".join(line for line in constants.splitlines() if line.split()[1] in body)
    return relume.parse(f"func @main({params}) {{ {body} return %y }}\n{used}")


@pytest.mark.parametrize("optimize", [0, 1])
@pytest.mark.parametrize("name", list(MISFITS))
def test_a_misfit_of_extents_is_an_input_error(name: str, optimize: int) -> None:
    params, body, shapes = MISFITS[name]
    exe = relume.compile(model(params, body), optimize=optimize)
    with pytest.raises(relume.InputError, match="do not go together") as error:
        exe(*(np.ones(shape, f32) for shape in shapes))
    assert error.value.expected and error.value.got and error.value.where


@pytest.mark.parametrize("optimize", [0, 1])
def test_what_goes_together_runs(optimize: int) -> None:
    exe = relume.compile(model(*MISFITS["broadcast of three"][:2]), optimize=optimize)
    for shapes in ([(2,), (1,), (2,)], [(1,), (1,), (3,)], [(3,), (3,), (1,)], [(0,), (1,), (1,)]):
        arrays = [np.arange(1, 1 + np.prod(shape), dtype=f32).reshape(shape) for shape in shapes]
        assert (exe(*arrays) == (arrays[0] + arrays[1]) * arrays[2]).all()


def test_a_saved_executable_still_checks(tmp_path: object) -> None:
    path = f"{tmp_path}/misfit.rlx"
    params, body, shapes = MISFITS["matmul"]
    relume.save(relume.compile(model(params, body)), path)
    with pytest.raises(relume.InputError, match="matmul"):
        relume.load_executable(path)(*(np.ones(shape, f32) for shape in shapes))


def test_what_is_decided_is_not_required() -> None:
    assert requirements_of(model("%a : f32[p,q], %b : f32[p,1]", "%y = add(%a, %b)").main) == ()
    assert len(requirements_of(model("%a : f32[p,q], %b : f32[r,1]", "%y = add(%a, %b)").main)) == 1
    inside = "%y = slice(%a, starts=[max(p-3,0)], stops=[min(p,5)], steps=[1])"
    assert requirements_of(model("%a : f32[p]", inside).main) == ()


def test_samples_fulfil_what_is_required() -> None:
    p, q = relume.parse("func @f(%x : f32[p,q]) { return %x }").main.inputs[0].dims
    assert satisfying([Requirement(EQUAL, p, 7000, "x"), Requirement(JOINS, q, 5, "x")], ["p", "q"], 240) == {
        "p": 7000,
        "q": 5,
    }
    assert satisfying([Requirement(EQUAL, p * q, 7, "x")], ["p", "q"], 240) is None
    bounds = [Requirement(AT_MOST, p, 7, "x"), Requirement(AT_MOST, 1000, q, "x")]
    assert satisfying(bounds, ["p", "q"], 240) == {"p": 7, "q": 1000}


def test_a_shape_as_data_is_not_folded_while_it_is_open() -> None:
    exe = relume.compile(
        relume.parse("func @main(%x : f32[N,M]) { %e = extents(dims=[N*M]) %y = cast(%e, to=f32) return %y }")
    )
    assert exe(np.zeros((3, 5), f32)).tolist() == [15]


def test_symbolic_output_channels_are_multiples_of_the_groups() -> None:
    text = """func @main(%x : f32[1,4,5], %w : f32[M,2,3]) {
  %y = conv(%x, %w, strides=[1], pads=[0,0], dilations=[1], groups=2)
  return %y
}"""
    executable = relume.compile(relume.parse(text))
    x = np.ones((1, 4, 5), np.float32)
    assert executable(x, np.ones((6, 2, 3), np.float32)).shape == (1, 6, 3)
    for outputs in (1, 3, 401):
        with pytest.raises(InputError, match="the output channels of 2 groups"):
            executable(x, np.ones((outputs, 2, 3), np.float32))
