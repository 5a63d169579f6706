"""What a pass is, what it promises, and how a table of passes is checked and run.

A pass is a plain function `Graph -> Graph` that returns the same object when it changes nothing. The decorator adds
its name and its contract::

    @graph_pass(needs=(no_composites,), ensures=(packed_weights,))
    def layout(graph: Graph) -> Graph:
        \"\"\"Moves convolutions to blocked channels. ...\"\"\"

An invariant that a pass does not break holds after it if it held before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from relume.base.errors import CompileError, RelumeError, VerifyError
from relume.graph.opdef import InferError
from relume.graph.types import Function, Graph, same_graph
from relume.graph.verify import verify


@dataclass(frozen=True)
class Invariant:
    """A named predicate on graphs: `check` returns what is wrong, or None where it holds."""

    name: str
    check: Callable[[Graph], str | None]

    @property
    def doc(self) -> str:
        """The invariant in prose: the docstring of the predicate."""
        return self.check.__doc__ or ""

    def __str__(self) -> str:
        return self.name


def invariant(check: Callable[[Graph], str | None]) -> Invariant:
    """Decorator: the function is an invariant of its own name (kebab case); its docstring says what holds."""
    return Invariant(_kebab(check.__name__), check)


@dataclass(frozen=True)
class Pass:
    """A pass with its contract. Call it on a graph; it returns the same object when it changes nothing."""

    name: str
    function: Callable[[Graph], Graph]
    needs: tuple[Invariant, ...] = ()
    """What must hold before."""
    ensures: tuple[Invariant, ...] = ()
    """What holds afterwards."""
    breaks: tuple[Invariant, ...] = ()
    """What may not hold any more afterwards."""
    required: bool = False
    """Whether nothing can be compiled without it: it runs at every optimisation level."""

    @property
    def doc(self) -> str:
        """The contract in prose: the docstring of the function."""
        return self.function.__doc__ or ""

    def __call__(self, graph: Graph) -> Graph:
        return self.function(graph)

    def __str__(self) -> str:
        return self.name


def graph_pass(
    *,
    needs: Sequence[Invariant] = (),
    ensures: Sequence[Invariant] = (),
    breaks: Sequence[Invariant] = (),
    required: bool = False,
) -> Callable[[Callable[[Graph], Graph]], Pass]:
    """Decorator that makes a function a `Pass`, named after it in kebab case."""

    def decorate(function: Callable[[Graph], Graph]) -> Pass:
        return Pass(_kebab(function.__name__), function, tuple(needs), tuple(ensures), tuple(breaks), required)

    return decorate


def _kebab(name: str) -> str:
    return name.strip("_").replace("_", "-")


def check_table(passes: Sequence[Pass], start: Iterable[Invariant] = ()) -> tuple[tuple[Invariant, ...], ...]:
    """Checks that in this order every pass finds what it needs. Returns what holds after each pass, sorted by name.

    Raises `CompileError` where a pass needs what no earlier one ensures, contradicts itself, or shares its name with
    another.
    """
    held = set(start)
    named: dict[str, Pass] = {}
    table: list[tuple[Invariant, ...]] = []
    for place, step in enumerate(passes):
        if named.setdefault(step.name, step) is not step:
            raise CompileError(f"two passes are called {step.name}", hint="rename one of them")
        both = sorted(item.name for item in set(step.ensures) & set(step.breaks))
        if both:
            raise CompileError(f"pass {step.name} both ensures and breaks {both[0]}")
        for item in step.needs:
            if item not in held:
                raise CompileError(
                    f"pass {step.name}, number {place + 1} in the table, needs {item.name}",
                    expected=item.name,
                    got=", ".join(sorted(other.name for other in held)) or "nothing is ensured there",
                    hint="move it behind a pass that ensures this, and before any that breaks it",
                )
        held = (held - set(step.breaks)) | set(step.ensures)
        table.append(tuple(sorted(held, key=lambda item: item.name)))
    return tuple(table)


def run(
    passes: Sequence[Pass],
    fn: Function,
    *,
    check: bool = False,
    after: Callable[[str, Function], None] | None = None,
    start: Iterable[Invariant] = (),
) -> Function:
    """Runs the passes in order. `after` is called with the name of each and the function that it gave.

    With `check`, the function is verified after every pass, and all invariants that should hold are. `start` are those
    that hold from the beginning. Raises `CompileError` naming the pass; whatever a pass itself raises says so too.
    """
    for step, held in zip(passes, check_table(passes, start)):
        try:
            graph = step(fn.graph)
        except InferError as error:
            raise CompileError(
                f"pass {step.name} built a node that does not fit: {error.what}",
                where=f"@{fn.name}",
                expected=error.expected,
                got=error.got,
            ) from error
        except RelumeError as error:
            error.add_note(f"in pass {step.name} on @{fn.name}")
            raise
        before, fn = fn, fn.with_graph(graph)
        if check:
            _check(step, before, fn, held)
        if after is not None:
            after(step.name, fn)
    return fn


def _check(step: Pass, before: Function, fn: Function, held: Sequence[Invariant]) -> None:
    try:
        verify(fn)
    except VerifyError as error:
        raise VerifyError(
            f"after pass {step.name}: {error.what}",
            where=error.where,
            expected=error.expected,
            got=error.got,
            context=error.context,
            hint=error.hint,
        ) from None
    for item in held:
        complaint = item.check(fn.graph)
        if complaint is not None:
            raise VerifyError(f"after pass {step.name}: {item.name} does not hold", where=f"@{fn.name}", got=complaint)
    if fn.graph is not before.graph and same_graph(fn.graph, before.graph):
        raise VerifyError(
            f"pass {step.name} changed nothing, yet returned another graph",
            where=f"@{fn.name}",
            expected="the same object, which says that nothing changed",
        )
