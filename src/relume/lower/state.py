"""Bufferisation: which memory each version of a state has, and when it is written.

A version is the state's own buffer, or the value last written: `state_read` and `state_write` make views, and `finish`
copies the last version into the buffer, once, when everything has been read. The ops of `IN_PLACE` update the buffer
itself, by contract; so whoever needs an older version has to come before:

- `ordered` puts the readers of older versions before the update wherever no dependence forbids it, whatever the order
  of the nodes was, and otherwise delays updates, so that little can end a run after a write.
- A reader that needs the result of the update too must stay behind it. A part of the old version is kept for it in a
  snapshot; the whole of it is not, because that is the copy that the op promises never to make: `CompileError`.
- The indices of all updates are checked (`row_numbers`) before the first write, as far as they do not depend on one:
  an index out of range then leaves every state as it was.
- A value in the buffer that is an output is copied to the output before, and read there from then on.

A state that is never written may be bound to the storage of one that is. So its readers count as readers of an older
version of every state. Two states that are both written have storages of their own (the runtime refuses anything else).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

from relume.base import dims
from relume.base.dims import Dim
from relume.base.dtypes import i64
from relume.base.errors import CompileError
from relume.graph.types import Function, State, Value
from relume.lower import views
from relume.lower.groups import Group, uses_of
from relume.lower.lowering import IN_PLACE, SEES_THROUGH, Lower, Lowering
from relume.program.types import IN, INOUT, OUT, Operand, Port, Space, View

# --- order ----------------------------------------------------------------------------------------------------------


def ordered(fn: Function, groups: Sequence[Group]) -> list[Group]:
    """The groups in an order that keeps all dependences, has the readers of a version before the update that consumes
    it where that is possible, and updates late."""
    if not any(group.op in IN_PLACE for group in groups):
        return list(groups)
    maker = {value: index for index, group in enumerate(groups) for value in group.targets}
    followers: list[set[int]] = [set() for _ in groups]
    for index, group in enumerate(groups):
        for value in uses_of(group):
            if value in maker:
                followers[maker[value]].add(index)
    homes = _homes(fn, groups)
    untouched = _untouched(fn, homes)
    for index, group in enumerate(groups):
        if group.op in IN_PLACE:
            slot, count = homes[group.targets[0]]
            for reader, other in enumerate(groups):
                old = any(
                    home[0] in untouched or (home[0] == slot and home[1] < count)
                    for value in _read(other)
                    if (home := homes.get(value)) is not None
                )
                if old and reader != index and not _reaches(followers, index, reader):
                    followers[reader].add(index)
    waiting = [0] * len(groups)
    for later in followers:
        for index in later:
            waiting[index] += 1
    ready = [(groups[index].op in IN_PLACE, index) for index, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    out: list[Group] = []
    while ready:
        _, index = heapq.heappop(ready)
        out.append(groups[index])
        for later_index in sorted(followers[index]):
            waiting[later_index] -= 1
            if not waiting[later_index]:
                heapq.heappush(ready, (groups[later_index].op in IN_PLACE, later_index))
    return out


Home = tuple[int, int]
"""A state, by its place in the function, and how many updates in place its buffer has seen."""


def _homes(fn: Function, groups: Sequence[Group]) -> dict[Value, Home]:
    """The values that may be views of a state's buffer, and of what content."""
    homes: dict[Value, Home] = {value: (slot, 0) for slot, value in enumerate(fn.states)}
    slots = {value: slot for slot, value in enumerate(fn.states)}
    counts = [0] * len(fn.states)
    for group in groups:
        if group.op not in SEES_THROUGH:
            continue
        target = group.targets[0]
        if isinstance(target.type, State):
            slot = slots[target] = slots[group.operands[0]]
            if group.op in IN_PLACE:
                counts[slot] += 1
                homes[target] = slot, counts[slot]
                continue
        source = group.operands[1 if group.op == "state_write" else 0]
        if source in homes:
            homes[target] = homes[source]
    return homes


def _untouched(fn: Function, homes: Mapping[Value, Home]) -> frozenset[int]:
    """The states that nothing but their own first content can reach: they may share memory with a written one."""
    return frozenset(slot for slot, value in enumerate(fn.next_states) if homes.get(value) == (slot, 0))


def _read(group: Group) -> tuple[Value, ...]:
    """What a group looks at. A write only consumes the version before; what it holds is of no interest."""
    return group.operands[1:] if group.op == "state_write" else uses_of(group)


def _reaches(followers: Sequence[set[int]], start: int, end: int) -> bool:
    seen, todo = {start}, [start]
    while todo:
        for index in followers[todo.pop()] - seen:
            if index == end:
                return True
            seen.add(index)
            todo.append(index)
    return False


# --- ops ------------------------------------------------------------------------------------------------------------


def read(low: Lowering, group: Group) -> None:
    """The tensor that the version holds."""
    low.bind(group.targets[0], low.view(group.operands[0]))


def write(low: Lowering, group: Group) -> None:
    """The next version is the value."""
    low.bind(group.targets[0], low.view(group.operands[1]))


def update(low: Lowering, group: Group) -> None:
    """An update in place of the state's buffer; a value that was written before is put there first.

    Raises `CompileError` that names a reader of the whole old version that has to run later.
    """
    version, indices, updates = group.operands
    (following,) = group.targets
    port = _port_of(low, version)
    _check_indices(low)
    _save_readers(low, group, port)
    rows = (indices.tensor.elements, *version.dims[1:])
    operands = [
        Operand(IN, low.row_numbers[_row_key(group)]),
        Operand(IN, _shaped(low, _outside(low, updates), rows, updates.name)),
    ]
    if low.view(version) != _current(low, port):
        _store(low, _outside(low, version), port)
    low.emit(group.op, [Operand(INOUT, _current(low, port)), *operands])
    low.bind(following, _current(low, port))


def _check_indices(low: Lowering) -> None:
    """Checks the indices of all updates that are known by now: what is wrong ends the run before the first write."""
    here = low.location
    for group in low.groups:
        if group.op not in IN_PLACE:
            continue
        key = indices, rows = _row_key(group)
        if key in low.row_numbers or not low.is_known(indices):
            continue
        low.location = group.location
        count = indices.tensor.elements
        numbers = low.temporary(f"{indices.name}.rows", i64, (count,))
        given = _shaped(low, low.view(indices), (count,), indices.name)
        low.emit("row_numbers", [Operand(IN, given), Operand(OUT, numbers)], scalars=(rows,))
        low.row_numbers[key] = numbers
    low.location = here


def _row_key(group: Group) -> tuple[Value, Dim]:
    """The indices of an update, and the number of rows that they count."""
    version, indices, _ = group.operands
    return indices, version.dims[0]


def _outside(low: Lowering, value: Value) -> View:
    """The value where no update of a state can reach it."""
    view = low.view(value)
    if view.buffer.space is Space.STATE:
        copied = low.temporary(value.name, value.dtype, value.dims)
        low.copy(view, copied)
        low.bind(value, copied)
        return copied
    return view


def _shaped(low: Lowering, view: View, shape: Sequence[Dim], hint: str) -> View:
    """The same elements under another shape."""
    found = views.reshaped(view, shape) or views.reshaped(low.ordered(view, hint), shape)
    assert found is not None, "a view in C order takes any shape"
    return found


def _port_of(low: Lowering, version: Value) -> Port:
    """The state whose version this is."""
    before = {group.targets[0]: group.operands[0] for group in low.groups if isinstance(_type(group), State)}
    while version in before:
        version = before[version]
    return low.states[low.fn.states.index(version)]


def _type(group: Group) -> object:
    return group.targets[0].type if group.targets else None


def _current(low: Lowering, port: Port) -> View:
    """The state's buffer as it is now."""
    return View.whole(port.buffer, port.dims, low.writes(port.buffer))


def _store(low: Lowering, source: View, port: Port) -> None:
    low.copy(source, _current(low, port))


def _save_readers(low: Lowering, group: Group, port: Port) -> None:
    """Sees to everything that is in the buffer now, or in one that may share its memory, and is needed later."""
    at = next(index for index, other in enumerate(low.groups) if other is group)
    later: dict[Value, str] = {}
    for value, place in _later_uses(low, at):
        later.setdefault(value, place)
    untouched = {low.states[slot].buffer.name for slot in _untouched(low.fn, _homes(low.fn, low.groups))}
    saved: dict[View, View] = {}
    for value, view in low.bound():
        if view.buffer.space is not Space.STATE or value not in later or value is group.operands[0]:
            continue
        if view.buffer != port.buffer and view.buffer.name not in untouched:
            continue
        if view not in saved:
            saved[view] = _saved(low, group, port, value, view, later[value])
        low.bind(value, saved[view])
        low.write_output(value)


def _later_uses(low: Lowering, at: int) -> Iterator[tuple[Value, str]]:
    for group in low.groups[at + 1 :]:
        for value in _read(group):
            if group.op in IN_PLACE and value is group.operands[1] and _row_key(group) in low.row_numbers:
                continue  # It takes the row numbers, which are there.
            name = f"{group.op} -> %{group.targets[0].name}" if group.targets else group.op
            yield value, f"{name} ({group.location})" if group.location else name
    for value, output in zip(low.fn.outputs, low.outputs):
        yield value, f"the output {output.name!r}"
    for value, before, state in zip(low.fn.next_states, low.fn.states, low.states):
        if value is not before:
            yield value, f"the next value of the state {state.name!r}"


def _saved(low: Lowering, group: Group, port: Port, value: Value, view: View, reader: str) -> View:
    """Where a later reader finds the value: in an output that it is, or in a snapshot."""
    for output, out in zip(low.fn.outputs, low.outputs):
        if output is value:
            low.write_output(value)
            return View.whole(out.buffer, value.dims)
    seen = dims.product(dim for dim, stride in zip(view.dims, view.strides) if stride != 0)
    if view.buffer == port.buffer and seen == port.buffer.elements:
        raise CompileError(
            f"{group.op} updates the state {port.name!r} in place and cannot: {reader} needs all of the version before "
            "and has to run later",
            where=group.location or f"%{group.targets[0].name}",
            expected=f"every use of %{value.name} before the update, or of a part of it only",
            got=f"%{value.name} used by {reader}",
            hint="take the rows that are needed (gather, slice) before the update, or write the state with state_write",
        )
    snapshot = low.temporary(value.name, value.dtype, value.dims)
    low.copy(view, snapshot)
    return snapshot


LOWERINGS: Mapping[str, Lower] = {"state_read": read, "state_write": write, **dict.fromkeys(sorted(IN_PLACE), update)}


# --- the end --------------------------------------------------------------------------------------------------------


def finish(low: Lowering) -> None:
    """Copies what has to reach outputs, and then states, from values that sit in no state: a parallel copy.

    So every read sees the value from before, also where a caller binds two states to one storage.
    """
    for value in low.fn.outputs:
        low.write_output(value)
    writes: list[tuple[View, Port]] = []
    for value, port in zip(low.fn.next_states, low.states):
        source = low.view(value)
        if source == _current(low, port):
            continue
        writes.append((_outside(low, value), port))
    for source, port in writes:
        _store(low, source, port)
