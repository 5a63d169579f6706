"""What every command prints with: tables for people, one JSON object for programs, errors with an exit status."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from relume.base.errors import RelumeError, UnsupportedError

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class UsageError(Exception):
    """The command line itself is wrong: exit status 2."""


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a small table."""
    shown = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        shown.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        shown.add_row(*(str(cell) for cell in row))
    out.print(shown)


def emit_json(value: Mapping[str, Any]) -> None:
    """Prints one JSON object, keys in the order given. JSON has no nan and no infinity: they become strings."""
    typer.echo(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Shows on a terminal that something is going on, and for how long. Leaves nothing behind."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        bar.add_task(what)
        yield


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Turns errors into one clear text (or JSON with `--json`) and the right exit status."""

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except UsageError as error:
            _report(kwargs, "UsageError", str(error), ())
            raise typer.Exit(2) from None
        except RelumeError as error:
            nodes = error.nodes if isinstance(error, UnsupportedError) else ()
            _report(kwargs, type(error).__name__, str(error), nodes)
            raise typer.Exit(1) from None

    return guarded


def _report(options: Mapping[str, Any], kind: str, text: str, nodes: Sequence[Sequence[str]]) -> None:
    if options.get("as_json"):
        emit_json({"error": kind, "message": text, "nodes": [list(node) for node in nodes]})
    else:
        err.print(f"[bold red]{kind}[/]: ", end="")
        err.print(text, markup=False)
