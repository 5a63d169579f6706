"""Executables: call compiled code with NumPy arrays."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import NoneType
from typing import Any

import numpy as np
from numpy import empty, ndarray

from relume.base import targets
from relume.base.abi import Status
from relume.base.errors import InputError, LimitError, RunError, UnsupportedError
from relume.runtime import constants
from relume.runtime.arguments import typed
from relume.runtime.artifact import Artifact, Port
from relume.runtime.binding import READY, as_ready, by_position
from relume.runtime.context import DEADLINE, DETAIL0, DETAIL1, FAILED, WRITTEN, Context
from relume.runtime.image import MappedImage
from relume.runtime.memory import address_of
from relume.runtime.plan import Plan, check_closed, make_plan
from relume.runtime.pool import POOL, thread_count
from relume.runtime.storage import Held, Storage

PLANS = 1024
"""Combinations of input shapes that an executable remembers; beyond it the least recently used is planned anew."""


Key = tuple[object, ...]
"""What a plan is found by: the shape and dtype of each input, one after the other."""


class Executable:
    """A compiled function, ready to run. Its code and constants are immutable and shared by all threads.

    `exe(x)` takes the inputs by position or by name and gives the output (a tuple if there are several or none);
    `exe.run({"x": x})` takes and gives arrays by name. Inputs must have exactly the dtype asked for (nothing is cast)
    and a shape that fits; a list is taken as `np.asarray` takes it. Inputs are never written; outputs are new arrays
    that belong to the caller.

    `threads` is how many threads a run may use (None: one per processor that this process may run on; 1: none but the
    caller's). The process has one pool of workers for all executables, as large as the largest request so far.

    Any number of Python threads may call one executable at the same time. The interpreter is released while it runs,
    and a signal handler that raises (Ctrl-C) ends the run.

    Raises `UnsupportedError` if this machine cannot run the artifact's code, `CompileError` if it is inconsistent.
    """

    def __init__(self, artifact: Artifact, *, threads: int | None = None) -> None:
        target = targets.BY_NAME.get(artifact.target)
        if target is None or not targets.runs_here(target):
            raise UnsupportedError(
                f"this machine cannot run code made for {artifact.target}",
                expected=", ".join(name for name, one in targets.BY_NAME.items() if targets.runs_here(one)) or "none",
                got=artifact.target,
                hint="compile the model again for this machine (target='host')",
            )
        check_closed(artifact)
        self._constants, self._kept = constants.hold(artifact.constants)
        self._constant_table = (ctypes.c_uint64 * max(len(self._constants), 1))(*map(address_of, self._constants))
        self._deriver = Executable(artifact.derived, threads=threads) if artifact.derived else None
        derived: Artifact | None = self._deriver.artifact if self._deriver else None
        self.artifact: Artifact = replace(artifact, constants=tuple(self._constants), derived=derived)  # Once each.
        self.threads = thread_count(threads)
        self._image = MappedImage(artifact.image)
        self._entry = self._image.entry()
        self._arity = len(artifact.inputs)
        self._input_count = self._arity + (len(derived.outputs) if derived else 0)
        self._output_names = [port.name for port in artifact.outputs]
        self._single = len(artifact.outputs) == 1
        self._others: dict[str, Executable] = {}
        # Changed by any thread without a lock: each operation on them is atomic, and a plan made twice does no harm.
        # (A lock that another thread holds when the process forks would stay locked in the child.)
        self._plans: dict[Key, Plan] = {}
        self._contexts: list[Context] = []

    @classmethod
    def of_module(cls, artifacts: Sequence[Artifact], *, threads: int | None = None) -> Executable:
        """The functions of one module, over one set of constants: the first, which gives the others by name."""
        parts = [part for artifact in artifacts for part in (artifact, artifact.derived) if part is not None]
        union = constants.hold([array for part in parts for array in part.constants])
        first, *others = (cls(artifact, threads=threads) for artifact in artifacts)
        del union  # Held until here: each function has found its constants there.
        return first.joined(others)

    # -- what it is --

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.artifact.name

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Name, dtype and dims of each input."""
        return self.artifact.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Name, dtype and dims of each output."""
        return self.artifact.outputs

    @property
    def states(self) -> tuple[Port, ...]:
        """Name, dtype and dims of each state."""
        return self.artifact.states

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, ports)) for ports in (self.inputs, self.outputs))
        return f"<Executable {self.name}({inputs}) -> ({outputs}), {self.artifact.target}>"

    @property
    def functions(self) -> tuple[Executable, ...]:
        """This function, and the others of its module, in order."""
        return (self, *self._others.values())

    def joined(self, others: Iterable[Executable]) -> Executable:
        """Makes the other functions of a module reachable as `exe[name]`. Returns this executable."""
        self._others.update((other.name, other) for other in others)
        return self

    def __getitem__(self, name: str) -> Executable:
        """A function of the same module by name. Raises `InputError` where there is none."""
        if name != self.name and name not in self._others:
            known = ", ".join(function.name for function in self.functions)
            raise InputError(f"there is no function {name!r}", expected=known, got=name)
        return self if name == self.name else self._others[name]

    # -- running it --

    def __call__(self, *arrays: object, **named: object) -> Any:
        """Runs it. One output is given as it is, any other number as a tuple.

        Raises `InputError` for what does not fit, `RunError` where the run fails, `LimitError` where it would need
        more memory than there is.
        """
        ordered: Sequence[object] = arrays
        if named or len(arrays) != self._arity:
            ordered = by_position(self.artifact, arrays, named)
        if self.artifact.states:
            return self._given(self._run_with(ordered, 0, None, None))
        return self._given(self._run(ordered))

    def _given(self, outputs: list[np.ndarray]) -> np.ndarray | tuple[np.ndarray, ...]:
        return outputs[0] if self._single else tuple(outputs)

    def run(
        self,
        inputs: Mapping[str, object],
        time_limit: float | None = None,
        states: Storage | None = None,
        context: Context | None = None,
    ) -> dict[str, np.ndarray]:
        """Runs it by name.

        `time_limit` is in seconds from now; past it the run ends with `LimitError`, and the executable can be used
        again. `states` is read and written in place; waiting for it counts as time. `context` is used instead of one
        of the executable's own. Functions of a module, and clones, may run on one storage and in one context.
        Raises what `__call__` raises.
        """
        if not isinstance(inputs, Mapping):
            raise InputError(
                f"{self.name}.run takes its inputs by name",
                expected="{" + ", ".join(f"{port.name!r}: array" for port in self.inputs) + "}",
                got=type(inputs).__name__,
                hint="pass a dict, or call the executable itself with arrays",
            )
        if not isinstance(states, (Storage, NoneType)):
            raise InputError(
                f"the states of {self.name} are no Storage",
                expected="a relume.Storage",
                got=type(states).__name__,
                hint="make one with relume.Storage({name: array})",
            )
        if not isinstance(context, (Context, NoneType)):
            raise InputError(
                f"the context of {self.name} is no Context",
                expected="a relume.Context, or none",
                got=type(context).__name__,
                hint="make one with relume.Context(), or leave it out",
            )
        deadline = _deadline(time_limit)
        outputs = self._run_with(by_position(self.artifact, (), inputs), deadline, states, context)
        return dict(zip(self._output_names, outputs))

    def _run_with(
        self, arrays: Sequence[object], deadline: int, storage: Storage | None, context: Context | None
    ) -> list[np.ndarray]:
        """A run with any of a deadline, states, and the caller's own context."""
        if context is None and not self.states:
            return self._run(arrays, deadline=deadline)
        ready = [as_ready(port, array) for port, array in zip(self.inputs, arrays)]
        _, plan = self._planned(ready)
        # The context before the storage, which waits where the context refuses.
        with nullcontext() if context is None else context.claimed():
            if not self.states:
                return self._run(ready, context, None, deadline)
            names, written = [port.name for port in self.states], self.artifact.written
            with self._check_states(storage, plan).run(names, written, deadline) as held:
                ready = held.apart(ready)
                return self._run(ready, context, held, deadline, self._derived(held, deadline))

    def _derived(self, held: Held, deadline: int) -> Sequence[np.ndarray]:
        """What the code takes behind the caller's inputs: computed from the states, or kept from an earlier run."""
        deriver = self._deriver
        if deriver is None:
            return ()
        names = [port.name for port in deriver.states]
        return held.derived(deriver, names, lambda states: deriver._derive(states, deadline))

    def _derive(self, held: Held, deadline: int) -> list[np.ndarray]:
        """Runs this function, which has no inputs. What is kept is not computed again soon, so the arena goes."""
        return self._run((), Context() if held.keeps else None, held, deadline)

    def _run(
        self,
        arrays: Sequence[Any],
        own: Context | None = None,
        held: Held | None = None,
        deadline: int = 0,
        derived: Sequence[np.ndarray] = (),
    ) -> list[np.ndarray]:
        """The way of every call. With nothing but ready arrays of a known shape it takes two to three microseconds.

        `arrays` is one value per input, `own` a context that the caller has claimed, `held` the storage of its
        states, `derived` what has been computed from them.
        """
        key: Key = ()
        for array in arrays:
            if array.__class__ is not ndarray or array.flags.num & READY != READY:
                key = ()
                break
            key += (array.shape, array.dtype)
        plan = self._plans.get(key)
        if plan is None:
            arrays = [as_ready(port, array) for port, array in zip(self.artifact.inputs, arrays)]
            key, plan = self._planned(arrays)
        if own is not None:
            context = own
        else:
            try:
                context = self._contexts.pop()
            except IndexError:
                context = Context()
        try:
            if context.plan is not plan:
                self._remember(key, plan)  # As the most recently used one.
                context.bind(plan, self._input_count, ctypes.addressof(self._constant_table))
            if context.epoch != POOL.epoch:
                context.attach(*POOL.request(self._image, self.threads))
            table = context.inputs
            for index, array in enumerate(arrays):
                table[index] = address_of(array)
            outputs, table = [], context.outputs
            for index, (shape, dtype) in enumerate(plan.outputs):
                output = empty(shape, dtype)
                outputs.append(output)
                table[index] = address_of(output)
            if deadline:
                context.frame[DEADLINE] = deadline
            status = self._entry(context.address) if held is None else self._enter(context, held, derived)
            if status:
                raise self._error(status, context)
            if deadline:
                context.frame[DEADLINE] = 0
        except BaseException:
            # Wherever a signal handler raised, here or in native code: the next run must not find the stop flag set.
            context.clear()
            raise
        finally:
            if own is None:
                self._contexts.append(context)
        return outputs

    def _enter(self, context: Context, held: Held, derived: Sequence[np.ndarray]) -> int:
        """Native code on states: notes whether it has written any."""
        context.states[: len(held.arrays)] = [address_of(array) for array in held.arrays.values()]
        context.inputs[self._arity : self._input_count] = [address_of(array) for array in derived]
        context.frame[WRITTEN] = 0
        held.wrote = True  # For all that is known, should a signal handler raise on the way in or out.
        try:
            return self._entry(context.address)
        finally:
            held.wrote = bool(context.frame[WRITTEN])

    def _planned(self, arrays: Sequence[np.ndarray]) -> tuple[Key, Plan]:
        """The plan for arrays that are ready, and its key."""
        key = tuple([item for array in arrays for item in (array.shape, array.dtype)])
        plan = self._plans.get(key)
        if plan is None:
            plan = make_plan(self.artifact, [array.shape for array in arrays])
            self._remember(key, plan)
        return key, plan

    def _remember(self, key: Key, plan: Plan) -> None:
        self._plans.pop(key, None)
        self._plans[key] = plan
        if len(self._plans) > PLANS:
            for oldest in list(self._plans)[: len(self._plans) - PLANS]:
                self._plans.pop(oldest, None)

    def _check_states(self, storage: Storage | None, plan: Plan) -> Storage:
        if storage is None:
            raise InputError(
                f"{self.name} has states, and none were given",
                expected=", ".join(map(str, self.states)),
                hint="make them with storage = relume.Storage({name: array}) and call exe.run(inputs, states=storage)",
            )
        for port, shape in zip(self.states, plan.states):
            if port.name not in storage:
                raise InputError(
                    f"the storage has no state {port.name!r}", expected=", ".join(map(str, self.states)), got=storage
                )
            got = storage.type_of(port.name)
            if got != (port.dtype.numpy, shape):
                raise InputError(
                    f"state {port.name!r} does not fit",
                    expected=typed(port.dtype.numpy, shape),
                    got=typed(*got),
                )
            if port.name in self.artifact.written and not storage.writable(port.name):
                raise InputError(
                    f"{self.name} writes the state {port.name!r}, which is read-only: its file is mapped to be read",
                    hint="map it with writable=True",
                )
        for pair in storage.overlaps:
            if all(name in self.artifact.written for name in pair):
                raise InputError(
                    f"{self.name} writes both {pair[0]!r} and {pair[1]!r}, which are bound to one memory",
                    expected="at most one writer of one memory",
                    got=storage,
                    hint="give each state that is written memory of its own",
                )
        return storage

    def _error(self, status: int, context: Context) -> Exception:
        failed, *details = (ctypes.c_int64(context.frame[field]).value for field in (FAILED, DETAIL0, DETAIL1))
        where = self.artifact.instructions.get(failed, self.name)
        if status == Status.STOPPED:
            return LimitError("the run was stopped: it reached its time limit", where=self.name)
        if status == Status.INDEX:
            index, extent = details
            return RunError(
                f"an index is out of range: {index}",
                where=where,
                expected=f"{-extent} to {extent - 1}" if extent else "no index at all: the axis is empty",
                got=index,
                hint="check the indices that the model is given or computes",
            )
        if status == Status.DIVISION:
            return RunError("an integer was divided by zero", where=where, hint="check the divisor's input")
        return RunError(f"the run failed with status {status}", where=where, got=f"details {details}")


def _deadline(time_limit: float | None) -> int:
    """The absolute deadline of a run, in nanoseconds of CLOCK_MONOTONIC; 0 for none."""
    if time_limit is None:
        return 0
    if isinstance(time_limit, bool) or not isinstance(time_limit, (int, float)) or not time_limit > 0:
        raise InputError("a time limit is a positive number of seconds", got=time_limit, hint="leave it out for none")
    nanoseconds = time_limit * 1e9
    # A century from now is no limit.
    return time.monotonic_ns() + int(nanoseconds) if nanoseconds < 3e18 else 0
