"""The standard ONNX backend interface (`onnx.backend.base`), for tools and test suites that speak it.

import relume.onnx_backend as backend
outputs = backend.prepare(model).run([x, y])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

from relume import api
from relume.base.errors import InputError, UnsupportedError
from relume.runtime import Executable

__all__ = ["Prepared", "RelumeBackend", "prepare", "run_model", "run_node", "supports_device"]

VARIANTS = 64
"""Fixed values that one prepared model keeps an executable for."""


class Prepared(BackendRep):  # type: ignore[misc]
    """A compiled model. `run` takes the inputs in the order of the model, or by name, and gives its outputs.

    Where extents of the model depend on the elements of inputs (the shape of a Reshape that is an input), the model is
    compiled when their values are first seen, once for each combination of them; `fixed` names those inputs.
    """

    def __init__(self, model: onnx.ModelProto, options: Mapping[str, Any]) -> None:
        self._model, self._options = model, dict(options)
        stored = {tensor.name for tensor in model.graph.initializer}
        self.inputs = tuple(value.name for value in model.graph.input if value.name not in stored)
        self.outputs = tuple(value.name for value in model.graph.output)
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
                raise InputError("too many inputs", expected=", ".join(self.inputs) or "none", got=len(values))
            given = dict(zip(self.inputs, values))
        missing = [name for name in self.inputs if name not in given]
        if missing:
            raise InputError("inputs are missing", expected=", ".join(self.inputs), got=", ".join(given) or "none")
        return {name: np.asarray(value) for name, value in given.items()}


class RelumeBackend(Backend):  # type: ignore[misc]
    """Compiles models for the processor of this machine. Options of its methods go to `relume.compile`."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        """Loads and compiles a model.

        Raises `UnsupportedError` for another device, and what `relume.load` and `relume.compile` raise.
        """
        if not cls.supports_device(device):
            raise UnsupportedError(f"there is no device {device!r}", expected="CPU", got=device)
        return Prepared(model, kwargs)

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
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
        version = kwargs.pop("opset_version", None)
        arrays = [np.asarray(value) for value in (inputs if isinstance(inputs, (list, tuple)) else [inputs])]
        names = list(dict.fromkeys(name for name in node.input if name))
        if len(names) != len(arrays):
            raise InputError(f"{node.op_type} has other inputs", expected=", ".join(names), got=len(arrays))
        infos = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in zip(names, arrays)
        ]
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
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be compiled, as far as that shows before its inputs are seen."""
        try:
            cls.prepare(model, device, **kwargs)
        except UnsupportedError:
            return False
        return True


prepare = RelumeBackend.prepare
run_model = RelumeBackend.run_model
run_node = RelumeBackend.run_node
supports_device = RelumeBackend.supports_device
