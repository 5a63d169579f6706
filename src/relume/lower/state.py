"""States: a version of a state is the buffer as the call found it, or the value last written; no copy in between.

`Lowering.finish` writes the last version back, once, when everything has been read.
"""

from __future__ import annotations

from collections.abc import Mapping

from relume.lower.groups import Group
from relume.lower.lowering import Lower, Lowering


def read(low: Lowering, group: Group) -> None:
    """The tensor that the version holds."""
    low.bind(group.targets[0], low.view(group.operands[0]))


def write(low: Lowering, group: Group) -> None:
    """The next version is the value."""
    low.bind(group.targets[0], low.view(group.operands[1]))


LOWERINGS: Mapping[str, Lower] = {"state_read": read, "state_write": write}
