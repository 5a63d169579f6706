"""The public functions. Everything here is re-exported, lazily, by `relume`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from relume import codegen, pipeline, reference
from relume.base import targets
from relume.base.errors import CompileError, InputError, ModelError
from relume.codegen import Cache
from relume.graph import sites, text
from relume.graph.types import UNTRACED, Function, Module
from relume.ops import OPS
from relume.passes.stateful import with_states
from relume.runtime import Executable, save_executable
from relume.runtime.arguments import as_array, as_names

if TYPE_CHECKING:
    import onnx


def load(
    source: str | Path | bytes | onnx.ModelProto,
    *,
    states: Mapping[str, str] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
) -> Module:
    """Reads a model: an ONNX file, its bytes, an `onnx.ModelProto`, or a `.rlm` text file.

    `states` says which outputs are the next value of which inputs (`{"h_in": "h_out"}`): each such input becomes a
    state, which lives in a `Storage` between calls, and the output disappears. `values` fixes inputs of an ONNX model:
    they become constants. That is needed where extents depend on their elements; `UnsupportedError.values` names them.

    Raises `InputError` where the file cannot be read or `values` is no mapping of names to arrays, `ModelError` where
    the model is malformed, `UnsupportedError` listing every node that is not supported, and `LimitError` where it asks
    for more than the documented limits.
    """
    given = as_names("the values to fix", {} if values is None else values, "{'shape': array}")
    path = Path(source) if isinstance(source, (str, Path)) else None
    if path is not None and path.suffix == ".rlx":
        raise InputError(
            f"{path} is a compiled artifact, not a model",
            expected="an ONNX or .rlm file",
            got=path,
            hint="run it with relume.load_executable(path), or `relume run`",
        )
    if path is not None and path.suffix == ".rlm":
        try:
            module = parse(_read(path).decode(), source=path.name)
        except UnicodeDecodeError as error:
            raise ModelError("the file is not text in UTF-8", where=source, got=error.reason) from None
        if given:
            raise InputError("a model in text form has no values to fix", where=source, hint="write them as constants")
    else:
        # onnx takes a quarter of a second to import: only who loads ONNX pays for it.
        from relume.frontends import onnx as frontend

        module = frontend.load(source, values=given)
    return module if states is None else module.with_function(with_states(module.main, states))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", hint="check the path") from None


def parse(source_text: str, *, constants: Mapping[str, np.ndarray] | None = None, source: str = "") -> Module:
    """Reads the text form of a module, the inverse of `str(module)`.

    Text names large constants by digest only: they are looked up in `constants` (digest to array), and then among the
    constants that this process still holds. `relume.graph.text.print_module(module, data=True)` writes the data
    themselves. A function whose text gives no origins is traced as on any import.

    Raises `ModelError` with the line.
    """
    if not isinstance(source_text, str):
        raise ModelError("the text form of a module is a string", got=type(source_text).__name__)
    module = text.parse_module(source_text, OPS, constants or {})
    return Module({name: _traced(fn) for name, fn in module.functions.items()}, source)


def _traced(fn: Function) -> Function:
    """The function with sites assigned, unless it has origins."""
    slots = (fn.graph.origins, *(node.origins for node in fn.graph.walk()))
    return sites.assign(fn) if all(slot == UNTRACED for group in slots for slot in group) else fn


def compile(
    model: Module | Function | str | Path | bytes | onnx.ModelProto,
    *,
    target: str = "host",
    threads: int | None = None,
    optimize: int = 1,
    check: bool = False,
    cache: bool | Cache = True,
) -> Executable:
    """Compiles a model to native code.

    `target` is `host` or the name of a target (`x86-64-avx2`, `x86-64-avx512`). `threads` is how many threads a run may
    use (None: one per core that this process may run on; 1 starts none). `optimize=0` runs the required passes only.
    `check` verifies every invariant after every pass. `cache` keeps compiled kernels on disk: True for the user's cache
    folder, False for none, or a `codegen.Cache`.

    The result runs the module's first function; `exe[name]` runs another.
    Raises `UnsupportedError`, `CompileError`, and what `load` raises.
    """
    if isinstance(model, Function):
        model = Module({model.name: model})
    module = model if isinstance(model, Module) else load(model)
    where = targets.parse(target)
    if not isinstance(cache, (bool, Cache)):
        raise CompileError("there is no such cache", expected="True, False or a codegen.Cache", got=repr(cache))
    store = codegen.default_cache() if cache is True else cache or None
    artifacts = [
        pipeline.build(fn, where, level=optimize, check=check, cache=store) for fn in module.functions.values()
    ]
    return Executable.of_module(artifacts, threads=threads)


def evaluate(
    module: Module | Function, inputs: Mapping[str, np.ndarray], states: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """What the model means: evaluates it by each op's NumPy reference. Slow, and the judge of everything else.

    Takes and gives arrays by name. Next states come back under the states' names, so no output may have one of them.
    Raises `InputError`, `ModelError`, `RunError`.
    """
    if not isinstance(module, (Module, Function)):
        raise ModelError("there is nothing to evaluate", expected="a Module or a Function", got=type(module).__name__)
    fn = module if isinstance(module, Function) else module.main
    clash = next((state.name for state in fn.states if state.name in fn.output_names), None)
    if clash is not None:
        raise ModelError(
            f"the output {clash!r} of {fn.name} is named like the state {clash!r}",
            expected="another name for the output: results go by name",
            got=", ".join(fn.output_names),
        )
    outputs, after = reference.evaluate(
        fn, _in_order(fn, "input", fn.inputs, inputs), _in_order(fn, "state", fn.states, states or {})
    )
    return dict(zip((*fn.output_names, *(state.name for state in fn.states)), (*outputs, *after)))


def _in_order(fn: Function, kind: str, wanted: tuple[object, ...], given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    given = as_names(f"the {kind}s of {fn.name}", given, "{'x': array}")
    names = [value.name for value in wanted]  # type: ignore[attr-defined]
    if set(names) != set(given):
        raise InputError(
            f"the {kind}s of {fn.name} do not fit",
            expected=", ".join(names) or "none",
            got=", ".join(given) or "none",
            hint=f"pass exactly these {kind}s by name",
        )
    return [as_array(f"{kind} {name!r}", given[name]) for name in names]


def save(executable: Executable, path: str | Path) -> None:
    """Writes a compiled artifact (`.rlx`) that `relume.load_executable` runs without the compiler."""
    save_executable(executable, Path(path))
