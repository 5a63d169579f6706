"""What extents must fulfil at run time, because it could not be decided before.

`infer` refuses what is provably wrong. Where two symbols may or may not agree, it notes a requirement instead; whoever
binds the symbols checks it, before anything is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from relume.base import dims
from relume.base.dims import Dim

EQUAL, BROADCASTS, JOINS, AT_MOST = "equal", "broadcasts", "joins", "at most"

KINDS: Mapping[str, str] = {kind: kind for kind in (EQUAL, BROADCASTS, JOINS, AT_MOST)}

_HOLDS: Mapping[str, Callable[[int, int], bool]] = {
    EQUAL: lambda a, b: a == b,
    BROADCASTS: lambda a, b: a in (1, b),
    JOINS: lambda a, b: a == b or 1 in (a, b),
    AT_MOST: lambda a, b: a <= b,
}
_WORDS = {EQUAL: "{b}", BROADCASTS: "{b} or 1", JOINS: "{b}, or one of them 1", AT_MOST: "at most {b}"}


@dataclass(frozen=True)
class Requirement:
    """`a` must equal `b`; or broadcast to it (equal, or 1); or join it (equal, or one of them 1); or be at most `b`."""

    kind: str
    a: Dim
    b: Dim
    what: str
    """What the extents are of, for the message: `operand w of conv`."""
    where: str = ""
    """The place in the user's model."""

    @property
    def symbols(self) -> frozenset[str]:
        return dims.symbols(self.a) | dims.symbols(self.b)

    def holds(self, binding: Mapping[str, int]) -> bool:
        """Whether it holds under `binding`, which has every symbol. Raises `ZeroDivisionError` as the dims do."""
        return _HOLDS[self.kind](dims.evaluate(self.a, binding), dims.evaluate(self.b, binding))

    def expected(self, binding: Mapping[str, int]) -> str:
        """What `a` should be, for people."""
        return f"{self.a} to be {_WORDS[self.kind].format(b=_valued(self.b, binding))}"

    def got(self, binding: Mapping[str, int]) -> str:
        """What `a` is, for people."""
        return _valued(self.a, binding)


def _valued(dim: Dim, binding: Mapping[str, int]) -> str:
    return str(dim) if isinstance(dim, int) else f"{dim} = {dims.evaluate(dim, binding)}"


def satisfying(requirements: Sequence[Requirement], symbols: Sequence[str], sample: int) -> dict[str, int] | None:
    """A binding near `sample` for every symbol that fulfils the requirements; None where a simple search finds none."""
    binding = dict.fromkeys(symbols, sample)
    for requirement in requirements:
        for one, other, bound in ((requirement.a, requirement.b, min), (requirement.b, requirement.a, max)):
            name = dims.symbol_name(one)
            if name in binding and isinstance(other, int):
                binding[name] = bound(binding[name], other) if requirement.kind == AT_MOST else other
    try:
        return binding if all(requirement.holds(binding) for requirement in requirements) else None
    except ZeroDivisionError:
        return None
