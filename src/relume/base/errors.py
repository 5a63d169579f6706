"""Errors are for people: what is wrong, where in their model, expected against got, and what to do."""

from __future__ import annotations


class RelumeError(Exception):
    """Root of every error that Relume raises on purpose.

    `what` is one plain sentence. `where` is a place in the user's model. `expected` and `got` are printed side by
    side when given. `hint` says what to do. `context` is up to ten lines of the model around the place.
    """

    def __init__(
        self,
        what: str,
        *,
        where: object | None = None,
        expected: object | None = None,
        got: object | None = None,
        hint: str | None = None,
        context: str | None = None,
    ) -> None:
        self.what, self.where, self.expected, self.got = what, where, expected, got
        self.hint, self.context = hint, context
        lines = [what]
        if where is not None:
            lines.append(f"  at: {where}")
        if expected is not None:
            lines.append(f"  expected: {expected}")
        if got is not None:
            lines.append(f"  got: {got}")
        if context:
            lines.append("  around it:")
            lines.extend("    " + line for line in context.splitlines())
        if hint:
            lines.append(f"  do: {hint}")
        super().__init__("\n".join(lines))


class ModelError(RelumeError):
    """The model is malformed: it cannot mean anything."""


class UnsupportedError(RelumeError):
    """The model is legal, but parts of it are not supported yet. `nodes` lists every one of them.

    Each entry is (place, op, reason). `values` names inputs that extents depend on: with their values given at import
    (`relume.load(..., values=...)`) more is supported.
    """

    def __init__(
        self,
        what: str,
        nodes: tuple[tuple[str, str, str], ...] = (),
        *,
        values: tuple[str, ...] = (),
        **kwargs: object,
    ) -> None:
        self.nodes, self.values = nodes, values
        if nodes:
            what += "".join(f"\n    {place}: {op}: {reason}" for place, op, reason in nodes)
        super().__init__(what, **kwargs)  # type: ignore[arg-type]


class InputError(RelumeError):
    """What was passed to a call does not fit the function: a missing name, a wrong shape or type."""


class CompileError(RelumeError):
    """Compilation failed on a legal model: an invariant does not hold, or a promise cannot be kept."""


class VerifyError(CompileError):
    """A graph or a program breaks one of its invariants. The text names the invariant and the place."""


class LimitError(RelumeError):
    """A limit was reached: a time limit, a budget of nodes or bytes, a depth."""


class RunError(RelumeError):
    """A run failed in the middle: an index out of range, an integer division by zero."""
