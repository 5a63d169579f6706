"""The standard ONNX backend interface (`onnx.backend.base`), for tools and test suites that speak it.

import relume.onnx_backend as backend
outputs = backend.prepare(model).run([x, y])
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

from relume import api
from relume.base.errors import InputError, ModelError, UnsupportedError
from relume.frontends.onnx.reading import Source, read
from relume.runtime import Executable
from relume.runtime.arguments import as_array, as_extent

__all__ = ["Prepared", "RelumeBackend", "prepare", "run_model", "run_node", "supports_device"]

VARIANTS = 64
"""Fixed values that one prepared model keeps an executable for."""

OPTIONS = tuple(name for name, one in inspect.signature(api.compile).parameters.items() if one.kind is one.KEYWORD_ONLY)
"""What `relume.compile` takes besides the model."""


class Prepared(BackendRep):  # type: ignore[misc]
    """A compiled model. `run` takes the inputs in the order of the model, or by name, and gives its outputs.

    Where extents of the model depend on the elements of inputs (the shape of a Reshape that is an input), the model is
    compiled when their values are first seen, once for each combination of them; `fixed` names those inputs.
    """

    def __init__(self, model: Source, options: Mapping[str, Any]) -> None:
        unknown = next((name for name in options if name not in OPTIONS), None)
        if unknown is not None:
            raise InputError(f"there is no option {unknown!r}", expected=", ".join(OPTIONS), got=unknown)
        self._model, self._options = model, dict(options)
        graph = read(model).model.graph
        stored = {tensor.name for tensor in graph.initializer}
        names = [value.name for value in graph.input]
        self.inputs = tuple(name for name in names if name not in stored)
        self.constants = tuple(name for name in names if name in stored)
        """Inputs of the graph that have a default: constants here, which a run cannot replace."""
        self.outputs = tuple(value.name for value in graph.output)
        self.fixed: tuple[str, ...] = ()
        self._executables: dict[tuple[object, ...], Executable] = {}
        try:
            self._executables[()] = api.compile(api.load(model), **self._options)
        except UnsupportedError as error:
            if not error.values:
                raise
            self.fixed = error.values

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs, as a named tuple. Raises what `relume.load`, `relume.compile` and a call raise."""
        named = self._named(inputs)
        while True:
            fixed = {name: named[name] for name in self.fixed}
            key = tuple((array.dtype.str, array.shape, array.tobytes()) for array in fixed.values())
            executable = self._executables.get(key)
            if executable is None:
                try:
                    executable = api.compile(api.load(self._model, values=fixed), **self._options)
                except UnsupportedError as error:
                    if not set(error.values) - set(self.fixed):
                        raise
                    self.fixed += tuple(name for name in error.values if name not in self.fixed)
                    continue
                if len(self._executables) >= VARIANTS:
                    self._executables.pop(next(iter(self._executables)))
                self._executables[key] = executable
            break
        results = executable.run({name: array for name, array in named.items() if name not in fixed})
        return namedtupledict("Outputs", self.outputs)(*(results[name] for name in self.outputs))

    def _named(self, inputs: Any) -> dict[str, np.ndarray]:
        if isinstance(inputs, Mapping):
            given = dict(inputs)
        else:
            values = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            if len(values) > len(self.inputs):
                raise InputError(
                    "too many inputs",
                    expected=", ".join(self.inputs) or "none",
                    got=len(values),
                    hint=self._about_constants(),
                )
            given = dict(zip(self.inputs, values))
        for name in self.constants:
            if name in given:
                raise InputError(
                    f"{name!r} is no input",
                    expected=", ".join(self.inputs) or "none",
                    got=name,
                    hint=self._about_constants(),
                )
        missing = [name for name in self.inputs if name not in given]
        if missing:
            raise InputError("inputs are missing", expected=", ".join(self.inputs), got=", ".join(given) or "none")
        return {name: as_array(f"input {name!r}", value) for name, value in given.items()}

    def _about_constants(self) -> str:
        names = ", ".join(self.constants)
        return names and f"{names}: a constant, as the model has an initializer for it; remove that to pass a value"


class RelumeBackend(Backend):  # type: ignore[misc]
    """Compiles models for the processor of this machine. Options of its methods go to `relume.compile`."""

    @classmethod
    def prepare(cls, model: str | Path | bytes | onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        """Loads and compiles a model: a message, an ONNX file or its bytes.

        Raises `UnsupportedError` for another device, `InputError` for an option that does not exist, and what
        `relume.load` and `relume.compile` raise.
        """
        if not cls.supports_device(device):
            raise UnsupportedError(f"there is no device {device!r}", expected="CPU", got=device)
        return Prepared(model, kwargs)

    @classmethod
    def run_model(
        cls, model: str | Path | bytes | onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Compiles a model and runs it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Compiles and runs a model of one node. `opset_version` is the version of its domain (default: the newest)."""
        if not isinstance(node, onnx.NodeProto):
            raise InputError("there is no node to run", expected="an onnx.NodeProto", got=type(node).__name__)
        version = kwargs.pop("opset_version", None)
        if version is not None and as_extent("opset_version", version) == 0:
            raise InputError("opset_version counts from 1", expected="at least 1", got=version)
        names = list(dict.fromkeys(name for name in node.input if name))
        values = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        arrays = [as_array(f"input {index} of {node.op_type}", value) for index, value in enumerate(values)]
        if len(names) != len(arrays):
            raise InputError(f"{node.op_type} has other inputs", expected=", ".join(names), got=len(arrays))
        infos = [_declared(name, array) for name, array in zip(names, arrays)]
        results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", infos, results)
        newest = onnx.defs.onnx_opset_version() if not node.domain else 1
        opsets = [onnx.helper.make_opsetid(node.domain, version or newest)]
        return cls.run_model(onnx.helper.make_model(graph, opset_imports=opsets), arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Only `CPU`."""
        return device == "CPU"

    @classmethod
    def is_compatible(cls, model: str | Path | bytes | onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model is well formed and can be compiled, as far as that shows before its inputs are seen."""
        try:
            cls.prepare(model, device, **kwargs)
        except (ModelError, UnsupportedError):
            return False
        return True


def _declared(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    try:
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    except ValueError:
        raise InputError(f"input {name!r} has no element type of ONNX", got=array.dtype) from None
    return onnx.helper.make_tensor_value_info(name, kind, array.shape)


prepare = RelumeBackend.prepare
run_model = RelumeBackend.run_model
run_node = RelumeBackend.run_node
supports_device = RelumeBackend.supports_device
