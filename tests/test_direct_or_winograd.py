"""Winograd convolutions from end to end: what level 1 makes of 3x3 windows, beside level 0, which is direct."""

from __future__ import annotations

import numpy as np
import pytest

import relume
from relume import Executable, Storage, pipeline
from relume.ops import winograd_weights
from relume.passes import winograd

NET = """
func @main(%x : f32[{n},20,{h},{w}]) {{
  %a = conv(%x, @w, @b, strides=[1,1], pads=[1,1,1,1], dilations=[1,1], groups=1)
  %r = relu(%a)
  %c = conv(%r, @v, strides=[1,1], pads=[0,1,0,1], dilations=[1,1], groups=1)
  %d = slice(%r, starts=[0,0,1,0], stops=[{n},40,{h}-1,{w}], steps=[1,1,1,1])
  %y = add(%c, %d)
  return %y as "y"
}}
const @w : f32[40,20,3,3] = random(1)
const @b : f32[40] = random(2)
const @v : f32[40,40,3,3] = random(3)
"""


def data(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def net(n: object = "N", h: object = "H", w: object = "W", **options) -> Executable:
    return relume.compile(relume.parse(NET.format(n=n, h=h, w=w)), **options)


@pytest.fixture(scope="module")
def symbolic() -> Executable:
    return net(threads=1)


def names(module: relume.Module) -> list[str]:
    graph = pipeline.optimize(module.main).graph
    return [node.op.name for outer in graph.nodes for node in (outer, *(n for r in outer.regions for n in r.nodes))]


def test_both_convolutions_of_the_net_are_winograd_and_their_weights_constants() -> None:
    for extents in (("N", "H", "W"), (2, 21, 30)):
        found = names(relume.parse(NET.format(n=extents[0], h=extents[1], w=extents[2])))
        assert found.count("conv_winograd") == 2
        assert not {"winograd_weights", "conv", "conv_blocked"} & set(found)


@pytest.mark.parametrize("shape", [(1, 20, 21, 30), (3, 20, 4, 5), (2, 20, 33, 7), (1, 20, 3, 3)])
def test_one_compilation_is_near_the_direct_one_at_every_size_and_has_the_bits_of_a_static_one(symbolic, shape) -> None:
    x = data(0, *shape)
    direct = net(optimize=0, threads=1)(x)
    y = symbolic(x)
    assert np.abs(y - direct).max() <= 3e-5 * np.abs(direct).max()
    chosen = [winograd.tile(c, 40, (shape[2] - trim, shape[3])) for c, trim in ((20, 0), (40, 2))]
    if chosen == [4, 4]:  # As for extents that are not known.
        assert net(shape[0], *shape[2:], threads=1)(x).tobytes() == y.tobytes()
    for n in range(shape[0]):
        assert symbolic(x[n : n + 1]).tobytes() == y[n : n + 1].tobytes()


def test_threads_do_not_change_bits(symbolic) -> None:
    x = data(0, 2, 20, 61, 70)
    assert net(threads=2)(x).tobytes() == symbolic(x).tobytes()


@pytest.mark.parametrize("tile", [4, 2])
def test_the_compiled_transform_of_weights_has_the_bits_of_the_reference(tile) -> None:
    w = data(1, 33, 20, 3, 3) * np.float32(1e-3)
    text = f"func @main(%w : f32[33,20,3,3]) {{ %u = winograd_weights(%w, tile={tile}) return %u }}"
    (want,) = winograd_weights.reference(w, attrs={"tile": tile}, regions=())
    for level in (0, 1):
        assert relume.compile(relume.parse(text), optimize=level)(w).tobytes() == want.tobytes()


def test_weights_in_a_state_are_transformed_once_and_give_the_bits_of_constant_ones() -> None:
    text = """
    func @main(%x : f32[1,32,40,40]) states(%w : f32[32,32,3,3]) {
      %m = state_read(%w)
      %y = conv(%x, %m, strides=[1,1], pads=[1,1,1,1], dilations=[1,1], groups=1)
      return %y as "y" states(%w)
    }
    """
    constant = """
    func @main(%x : f32[1,32,40,40]) {
      %y = conv(%x, @w, strides=[1,1], pads=[1,1,1,1], dilations=[1,1], groups=1)
      return %y as "y"
    }
    const @w : f32[32,32,3,3] = random(5)
    """
    module, x = relume.parse(constant), data(0, 1, 32, 40, 40)
    (node,) = module.main.graph.nodes
    want = relume.compile(module)(x)
    exe = relume.compile(relume.parse(text))
    assert exe.artifact.derived is not None
    storage = Storage({"w": node.operands[1].data})
    for _ in range(2):
        assert exe.run({"x": x}, states=storage)["y"].tobytes() == want.tobytes()


# --- the rule -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channels", "outputs", "extents", "tile"),
    [
        (64, 64, (56, 56), 4),
        (128, 128, (28, 28), 4),
        (256, 256, (14, 14), 2),
        (512, 512, (7, 7), None),  # The weights would be read for too few tiles.
        (512, 512, (28, 28), 2),  # With larger tiles they would take too much memory.
        (16, 16, (40, 40), 4),
        (16, 16, (3, 3), None),
        (64, 64, (1, 80), None),  # Half of each tile would be outside, or more.
        (64, 64, (2, 80), 2),
        (3, 64, (112, 112), None),
        (1024, 64, (56, 56), None),
    ],
)
def test_the_rule_is_what_was_measured(channels, outputs, extents, tile) -> None:
    assert winograd.tile(channels, outputs, extents) == tile
