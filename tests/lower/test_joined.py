"""Blocks that join branches, as networks have them: whatever the parts are and whoever reads what is joined, the
compiled function is the reference."""

from __future__ import annotations

import random

import numpy as np
import pytest

import relume

CONV = "conv({x}, @w{n}, strides=[1,1], pads={pads}, dilations=[1,1], groups={groups})"
POOL = "max_pool({x}, window=[3,3], strides=[1,1], pads=[1,1,1,1], dilations=[1,1], ceil=false)"


class Block:
    """A function under construction: `size` by `size` pixels of a number of channels that each value has."""

    def __init__(self, seed: int, size: int = 6) -> None:
        self.dice, self.size = random.Random(seed), size
        self.lines: list[str] = []
        self.weights: list[str] = []
        self.channels = {"x": self.dice.choice([16, 20, 32])}
        self.first = self.channels["x"]

    def value(self, text: str, channels: int) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"%{name} = {text}")
        self.channels[name] = channels
        return name

    def conv(self, x: str, outputs: int, window: int, groups: int = 1) -> str:
        number, inputs = len(self.weights), self.channels[x]
        self.weights.append(
            f"const @w{number} : f32[{outputs},{inputs // groups},{window},{window}] = random({number})"
        )
        pads = [window // 2] * 4
        return self.value(CONV.format(x=f"%{x}", n=number, pads=pads, groups=groups), outputs)

    def slice(self, x: str, low: int, high: int) -> str:
        stops = [1, high, self.size, self.size]
        return self.value(f"slice(%{x}, starts=[0,{low},0,0], stops={stops}, steps=[1,1,1,1])", high - low)

    def part(self, known: list[str]) -> list[str]:
        """One part, or two halves of one value."""
        x, kind = self.dice.choice(known), self.dice.randrange(6)
        if kind == 0:
            return [x]
        if kind == 1:
            return [self.value(f"relu(%{x})", self.channels[x])]
        if kind == 2:
            return [self.value(POOL.format(x=f"%{x}"), self.channels[x])]
        made = self.conv(x, self.dice.choice([8, 16, 32]), self.dice.choice([1, 3]))
        if kind == 3 and self.channels[made] == 32:
            halves = [self.slice(made, 0, 16), self.slice(made, 16, 32)]
            return halves if self.dice.random() < 0.7 else halves[::-1]
        return [made]

    def text(self) -> str:
        known = [self.conv("x", 16, self.dice.choice([1, 3]))]
        for _ in range(self.dice.randint(1, 2)):
            parts = [name for _ in range(self.dice.randint(2, 3)) for name in self.part(known)]
            joined = self.value(
                f"concat({', '.join(f'%{n}' for n in parts)}, axis=1)", sum(map(self.channels.get, parts))
            )
            known += [*parts, joined]
            reader, channels = self.dice.randrange(4), self.channels[joined]
            if reader == 0:
                known.append(self.conv(joined, channels, 3, groups=channels))
            elif reader == 1:
                known.append(self.value(POOL.format(x=f"%{joined}"), channels))
            else:
                known.append(self.conv(joined, 16, self.dice.choice([1, 3])))
        results = [known[-1], *self.dice.sample(known, 1)] if self.dice.random() < 0.4 else [known[-1]]
        body = "\n  ".join(self.lines)
        returned = ", ".join(f"%{name}" for name in dict.fromkeys(results))
        head = f"func @main(%x : f32[1,{self.first},{self.size},{self.size}])"
        return f"{head} {{\n  {body}\n  return {returned}\n}}\n" + "\n".join(self.weights)


@pytest.mark.parametrize("seed", range(24))
def test_blocks_that_join_branches_are_the_reference(seed: int) -> None:
    text = Block(seed).text()
    module = relume.parse(text)
    (port,) = module.main.inputs
    x = np.random.default_rng(seed).standard_normal([int(dim) for dim in port.dims]).astype(np.float32)
    wanted = relume.evaluate(module, {"x": x})
    given = relume.compile(module, threads=1, check=True).run({"x": x})
    for name, array in wanted.items():
        scale = np.abs(array).max()
        np.testing.assert_allclose(given[name], array, rtol=0, atol=2e-5 * scale, err_msg=text)
