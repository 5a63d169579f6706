"""The program verifier. It runs in every build.

What holds in every program:

1.  **Names.** Buffers have different names, instructions different ids. Every buffer that a port or an instruction
    names is one of the program's, as it stands there; a port's buffer is in the port's space and has the port's type
    and number of elements.
2.  **Symbols.** Every extent, stride, offset, size and scalar is over symbols that an input binds (by a dim that is the
    bare symbol).
3.  **Range.** A view lies inside its buffer. A result touches no element twice.
4.  **Who may be written.** Inputs and constants never are. A state that is never written is not read once another one
    was, nor by the instruction that does: a caller may bind both to one storage. (Two that are both written have
    storages of their own.)
5.  **Versions.** Each view of a state's buffer names the version that it finds there: how many instructions wrote the
    buffer before. So whoever reads a version runs before the instruction that consumes it.
6.  **Written before read.** Every element that an instruction reads was written by an earlier one (inputs, states,
    constants and counters are from the start). A kernel with a `border` is `inout` without reading: it writes the
    border of its view, and needs the inside written.
7.  **Outputs** are written completely by the end.
8.  **One reader at a time.** Within an instruction, what is written overlaps what is read only where the kernel allows
    it (`may_reuse` or `must_reuse`), and then both are the same view; two results never overlap.
9.  **Aliasing, by byte range.** With all allocations placed in the arena, no buffer is written while another one that
    is live has bytes there. The one exception is an in-place decision: it is recorded in `reused`, its operand's
    buffer dies at the instruction where the result's begins, and the kernel allows it for exactly these views.

A program of static extents is checked as it is. Else the geometry is checked under sample bindings of its symbols; not
every binding is a legal input (a model may divide one extent by another), so a fault must show under each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from relume.base import dims, intervals
from relume.base.dims import Dim
from relume.base.errors import VerifyError
from relume.base.requirements import Requirement, satisfying
from relume.program.footprint import Footprint, covers, disjoint, footprint_of
from relume.program.plan import buffer_lifetimes, label, lifetimes, same_places, shares
from relume.program.text import print_instr, print_view
from relume.program.types import IN, INOUT, OUT, Instr, Operand, Program, Reused, Space

SAMPLES = (240, 5040)
"""What all symbols are, in turn: multiples of many numbers, and equal because two of them may be broadcast together."""

_FROM_THE_START = (Space.INPUT, Space.STATE, Space.CONSTANT, Space.COUNTER)


def verify(
    program: Program, offsets: Mapping[str, int] | None = None, requirements: Sequence[Requirement] = ()
) -> None:
    """Raises `VerifyError` where an invariant does not hold; the text names the instructions.

    `offsets` are the byte offsets of the allocations that will be used, where they are known; else they are planned
    here for the sizes at hand. `requirements` are what the symbols will fulfil.
    """
    _check_names(program)
    symbols = _check_symbols(program)
    _check_writes(program)
    if not symbols:
        _check_geometry(program, _Binding({}), offsets)
        return
    faults: list[VerifyError] = []
    for sample in SAMPLES:
        binding = satisfying(requirements, symbols, sample)
        if binding is None:
            continue
        try:
            if _check_geometry(program, _Binding(binding), offsets):
                return
        except VerifyError as fault:
            faults.append(fault)
    if faults:
        raise faults[0]


def _fail(rule: str, what: str, *instrs: Instr, expected: object = None, got: object = None) -> NoReturn:
    raise VerifyError(
        f"the program breaks the rule {rule!r}: {what}",
        where="; ".join(map(label, instrs)) or None,
        expected=expected,
        got=got,
        context="\n".join(map(print_instr, instrs)) or None,
        hint="this is a fault of the compiler: please report it with the model",
    )


# --- what needs no numbers ------------------------------------------------------------------------------------------


def _check_names(program: Program) -> None:
    buffers = {buffer.name: buffer for buffer in program.buffers}
    if len(buffers) != len(program.buffers):
        _fail("names", "two buffers have one name")
    by_id: dict[int, Instr] = {}
    for instr in program.instrs:
        if instr.id in by_id:
            _fail("names", f"two instructions have the id {instr.id}", by_id[instr.id], instr)
        by_id[instr.id] = instr
        for operand in instr.operands:
            buffer = operand.view.buffer
            if operand.access not in (IN, OUT, INOUT):
                _fail("names", f"there is no access {operand.access!r}", instr)
            if buffers.get(buffer.name) is not buffer and buffers.get(buffer.name) != buffer:
                _fail("names", f"{buffer} is no buffer of the program", instr)
    for space, ports in (
        (Space.INPUT, program.inputs),
        (Space.OUTPUT, program.outputs),
        (Space.STATE, program.states),
    ):
        if [port.buffer.index for port in ports] != list(range(len(ports))):
            _fail("names", f"the {space.value}s do not have the slots 0, 1, 2 ... in order")
        for port in ports:
            buffer, wanted = port.buffer, (space, port.dtype, dims.product(port.dims))
            if buffers.get(buffer.name) != buffer or (buffer.space, buffer.dtype, buffer.elements) != wanted:
                _fail("names", f"the buffer of {space.value} {port.name!r} does not fit it", got=buffer)
    if [buffer.index for buffer in program.constants] != list(range(len(program.constants))):
        _fail("names", "the constants do not have the slots 0, 1, 2 ... in order")
    for note in program.reused:
        if note.instr not in by_id:
            _fail("names", f"an in-place decision speaks of #{note.instr}, which does not exist")
        if not {note.result, note.operand} <= set(range(len(by_id[note.instr].operands))):
            _fail("names", "an in-place decision speaks of an operand that does not exist", by_id[note.instr])


def _check_symbols(program: Program) -> list[str]:
    """Gives the symbols that inputs bind, in order."""
    bound: list[str] = []
    for port in program.inputs:
        for dim in port.dims:
            name = dims.symbol_name(dim)
            if name is not None and name not in bound:
                bound.append(name)
    fine: set[Dim] = set()

    def check(what: str, extents: tuple[Dim, ...], *instrs: Instr) -> None:
        for dim in extents:
            if isinstance(dim, int) or dim in fine:
                continue
            missing = ", ".join(sorted(dims.symbols(dim).difference(bound)))
            if missing:
                _fail("symbols", f"{what} needs {missing}, which no input binds", *instrs, got=dim)
            fine.add(dim)

    for port in (*program.inputs, *program.outputs, *program.states):
        check(f"the shape of {port.name!r}", port.dims)
    for buffer in program.buffers:
        check(f"the size of {buffer}", (buffer.elements,))
    for instr in program.instrs:
        check("a scalar", instr.scalars, instr)
        for operand in instr.operands:
            view = operand.view
            if len(view.dims) != len(view.strides):
                _fail("range", f"{view.buffer} has not as many strides as extents", instr, got=print_view(view))
            check("a view", (view.offset, *view.dims, *view.strides), instr)
    return bound


def _check_writes(program: Program) -> None:
    writers: dict[str, list[Instr]] = {}
    changed = {buffer.name for instr in program.instrs for buffer in instr.writes if buffer.space is Space.STATE}
    last: Instr | None = None
    for instr in program.instrs:
        writing = [buffer for buffer in instr.writes if buffer.space is Space.STATE]
        for operand in instr.operands:
            buffer = operand.view.buffer
            if operand.access != IN and buffer.space in (Space.INPUT, Space.CONSTANT):
                _fail("who may be written", f"{buffer} is an {buffer.space.value} and is written", instr)
            _check_version(operand, instr, writers.get(buffer.name, []))
            if operand.access == IN and buffer.space is Space.STATE:
                if last is not None and buffer.name not in changed:
                    _fail("who may be written", f"{buffer} is read after a state was written", last, instr)
                if writing:
                    what = f"{buffer} is read by the instruction that writes the state {writing[0]}"
                    _fail("who may be written", what, *([] if last is None else [last]), instr)
        for buffer in writing:
            writers.setdefault(buffer.name, []).append(instr)
            last = instr


def _check_version(operand: Operand, instr: Instr, writers: list[Instr]) -> None:
    view = operand.view
    expected = len(writers)
    if view.version == expected:
        return
    if 0 <= view.version < expected:
        what = f"version {view.version} of {view.buffer} was consumed before it is used again"
        _fail("versions", what, writers[view.version], instr, expected=f"version {expected}", got=print_view(view))
    what = f"version {view.version} of {view.buffer} is not there yet"
    _fail("versions", what, *writers[-1:], instr, expected=f"version {expected}", got=print_view(view))


# --- geometry -------------------------------------------------------------------------------------------------------


class _Binding:
    """Evaluates extents, each only once."""

    def __init__(self, symbols: Mapping[str, int]) -> None:
        self.symbols = symbols
        self._known: dict[Dim, int] = {}

    def __call__(self, dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        if dim not in self._known:
            self._known[dim] = dims.evaluate(dim, self.symbols)
        return self._known[dim]


class _Touch:
    """One operand with numbers: its footprint (None where it holds no element)."""

    def __init__(self, instr: Instr, operand: Operand, value: _Binding) -> None:
        self.instr, self.operand, view = instr, operand, operand.view
        self.offset = value(view.offset)
        self.extents, self.strides = [value(dim) for dim in view.dims], [value(stride) for stride in view.strides]
        self.footprint = footprint_of(self.offset, self.extents, self.strides)
        self.border = instr.kernel.border(instr.params) if instr.kernel.border else None

    def written(self) -> list[Footprint]:
        """The parts that the instruction writes: all of the view, or its border only."""
        if self.footprint is None or self.operand.access == IN:
            return []
        if self.border is None:
            return [self.footprint]
        strips = [
            strip
            for axis, (before, after) in enumerate(self.border)
            for strip in ((axis, 0, before), (axis, self.extents[axis] - after, self.extents[axis]))
        ]
        return [part for strip in strips if (part := self._strip(*strip)) is not None]

    def _strip(self, axis: int, low: int, high: int) -> Footprint | None:
        extents = list(self.extents)
        extents[axis] = high - low
        return footprint_of(self.offset + low * self.strides[axis], extents, self.strides)

    def read(self) -> Footprint | None:
        """The part that must have been written before: all of the view, or what lies inside its border."""
        if self.operand.access == OUT or self.footprint is None:
            return None
        if self.border is None:
            return self.footprint
        extents = [extent - sum(widths) for extent, widths in zip(self.extents, self.border)]
        start = sum(before * stride for (before, _), stride in zip(self.border, self.strides))
        return footprint_of(self.offset + start, extents, self.strides)


def _check_geometry(program: Program, value: _Binding, offsets: Mapping[str, int] | None) -> bool:
    """Gives False, and checks nothing, where an extent is negative: then no legal input looks like this sample."""
    elements = {buffer.name: value(buffer.elements) for buffer in program.buffers}
    full = {buffer.name for buffer in program.buffers if buffer.space in _FROM_THE_START or elements[buffer.name] <= 0}
    parts: dict[str, list[Footprint]] = {}
    last_writer: dict[str, Instr] = {}
    run = [(instr, [_Touch(instr, operand, value) for operand in instr.operands]) for instr in program.instrs]
    if value.symbols and any(extent < 0 for _, touches in run for touch in touches for extent in touch.extents):
        return False
    for instr, touches in run:
        for touch in touches:
            _check_range(touch, elements)
            name, wanted = touch.operand.view.buffer.name, touch.read()
            if wanted is not None and name not in full:
                _check_covered(instr, name, parts.get(name, []), wanted, elements[name], last_writer.get(name))
        _check_within(instr, touches, elements)
        for touch in touches:
            name = touch.operand.view.buffer.name
            for part in touch.written():
                last_writer[name] = instr
                if part.fills(elements[name]):
                    full.add(name)
                elif name not in full:
                    parts.setdefault(name, []).append(part)
    for port in program.outputs:
        name = port.buffer.name
        if name not in full:
            everything = footprint_of(0, [elements[name]], [1])
            assert everything is not None  # An empty buffer is full from the start.
            if not covers(parts.get(name, []), everything, elements[name]):
                instrs = [last_writer[name]] if name in last_writer else []
                _fail("outputs", f"output {port.name!r} is not written completely", *instrs)
    _check_aliasing(program, elements, offsets)
    return True


def _check_range(touch: _Touch, elements: Mapping[str, int]) -> None:
    view, found = touch.operand.view, touch.footprint
    if any(extent < 0 for extent in touch.extents):
        _fail("range", f"a view of {view.buffer} has a negative extent", touch.instr, got=print_view(view))
    if found is None:
        return
    size = elements[view.buffer.name]
    if found.offset < 0 or found.end > size:
        got = f"{print_view(view)}: elements {found.offset} to {found.end - 1}"
        _fail("range", f"a view leaves {view.buffer}", touch.instr, expected=f"elements 0 to {size - 1}", got=got)
    if touch.operand.access != IN and found.repeats:
        _fail("range", "a result touches an element twice", touch.instr, got=print_view(view))


def _check_covered(
    instr: Instr, name: str, parts: list[Footprint], wanted: Footprint, elements: int, writer: Instr | None
) -> None:
    if writer is None:
        _fail("written before read", f"%{name} is read and nothing has written it", instr)
    # Where the parts fit no common grid, at least one write is all that can be asked.
    if covers(parts, wanted, elements) is False:
        _fail("written before read", f"%{name} is read where nothing has written it", writer, instr)


def _check_within(instr: Instr, touches: list[_Touch], elements: Mapping[str, int]) -> None:
    for index, touch in enumerate(touches):
        if touch.operand.access == IN or touch.footprint is None:
            continue
        buffer = touch.operand.view.buffer
        for other_index, other in enumerate(touches):
            if other_index == index or other.footprint is None or other.operand.view.buffer.name != buffer.name:
                continue
            if disjoint(touch.footprint, other.footprint, elements[buffer.name]):
                continue
            if other.operand.access != IN:
                _fail("one reader at a time", f"two results overlap on {buffer}", instr)
            if other_index not in _allowed(instr, index) or not same_places(touch.operand.view, other.operand.view):
                what = (
                    f"operand {index} is written over operand {other_index} on {buffer}, which {instr.kernel} forbids"
                )
                _fail("one reader at a time", what, instr)


def _allowed(instr: Instr, result: int) -> set[int]:
    spec, _ = instr.specialise()
    return {*instr.kernel.may_reuse(spec).get(result, ()), *instr.kernel.must_reuse(spec).get(result, ())}


def _check_aliasing(program: Program, elements: Mapping[str, int], offsets: Mapping[str, int] | None) -> None:
    lives = buffer_lifetimes(program)
    names = list(lives)
    bytes_of = {buffer.name: elements[buffer.name] * buffer.dtype.bytes for buffer in program.arena}
    place = {name: program.allocations.get(name, name) for name in names}
    if offsets is None:
        spans = lifetimes(program)
        needed = dict.fromkeys(spans, 0)
        for name, allocation in place.items():
            needed[allocation] = max(needed[allocation], bytes_of[name])
        firsts, lasts = zip(*spans.values()) if spans else ((), ())
        offsets = dict(zip(spans, intervals.plan(list(needed.values()), firsts, lasts)[0]))
    missing = sorted({allocation for allocation in place.values() if allocation not in offsets})
    if missing:
        _fail("aliasing", f"allocation %{missing[0]} has no offset")
    pairs = intervals.overlaps(
        [offsets[place[name]] for name in names],
        [bytes_of[name] for name in names],
        [lives[name][0] for name in names],
        [lives[name][1] for name in names],
    )
    notes: dict[int, list[Reused]] = {}
    for note in program.reused:
        notes.setdefault(note.instr, []).append(note)
    for pair in pairs:
        before, after = sorted((names[index] for index in pair), key=lambda name: lives[name])
        position = lives[after][0]
        instr = program.instrs[position]
        other = program.instrs[lives[before][1]]
        if lives[before][1] == position and offsets[place[before]] == offsets[place[after]]:
            for note in notes.get(instr.id, ()):
                result, operand = instr.operands[note.result], instr.operands[note.operand]
                if (result.view.buffer.name, operand.view.buffer.name) == (after, before):
                    problem = _in_place_problem(instr, note.result, note.operand)
                    if problem is not None:
                        _fail("aliasing", f"%{after} cannot sit on %{before}: {problem}", instr)
                    break
            else:
                _fail("aliasing", f"%{after} shares bytes with %{before}, and no decision says why", instr)
            continue
        _fail("aliasing", f"%{after} is written over %{before}, which is still used", instr, other)


def _in_place_problem(instr: Instr, result: int, operand: int) -> str | None:
    allowed = _allowed(instr, result)
    if operand not in allowed:
        return f"{instr.kernel.name} does not allow operand {operand} for {result}"
    if instr.operands[result].access != OUT or instr.operands[operand].access != IN:
        return "one is not a plain result or operand"
    problem = shares(instr, result, operand)
    if problem is not None:
        return problem
    view = instr.operands[operand].view
    for index, other in enumerate(instr.operands):
        if other.view.buffer.name == view.buffer.name and (index not in allowed or not same_places(other.view, view)):
            return f"operand {index} looks at it in another way"
    return None
