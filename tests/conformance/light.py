"""The light models of the onnx package with random weights, so that their outputs say something.

In the package each weight is one number repeated, made by a ConstantOfShape node. Here it is drawn: weights of
convolutions and Gemm scaled by the square root of 2 / inputs (He), so that activations neither die nor explode.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import skimage.data
from onnx import numpy_helper
from PIL import Image

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = tuple(sorted(file.stem.removeprefix("light_") for file in DATA.glob("light_*.onnx")))
FOLDED = ("Unsqueeze", "Reshape", "Identity")
"""Nodes that stand between a weight and who uses it."""


def randomised(name: str, seed: int = 0) -> onnx.ModelProto:
    """A light model with random weights, whose one output are the logits (what its last Softmax is given)."""
    model = onnx.load(DATA / f"light_{name}.onnx")
    graph = model.graph
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    drawn = np.random.default_rng(seed)
    tensors, kept, generated = [], [], set()
    for node in graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        dims = tuple(int(extent) for extent in shapes[node.input[0]])
        tensors.append(numpy_helper.from_array(_weights(graph, node.output[0], dims, drawn), node.output[0]))
        generated.add(node.input[0])
    logits = graph.output[0].name
    if kept[-1].op_type == "Softmax":
        logits = kept.pop().input[0]
    stored = [tensor for tensor in graph.initializer if tensor.name not in generated]
    inputs = [value for value in graph.input if value.name not in shapes]
    return onnx.helper.make_model(
        onnx.helper.make_graph(kept, name, inputs, [onnx.ValueInfoProto(name=logits)], [*stored, *tensors]),
        opset_imports=list(model.opset_import),
        ir_version=8,
    )


def _weights(graph: onnx.GraphProto, name: str, dims: tuple[int, ...], drawn: np.random.Generator) -> np.ndarray:
    user, place = _user(graph, name)
    if len(dims) > 1:
        inputs = int(np.prod(dims[1:]))
        if user == "Gemm":
            inputs = max(dims)  # Whichever way it is turned, near enough.
        return (drawn.standard_normal(dims, np.float32) * np.sqrt(2 / inputs)).astype(np.float32)
    if user == "BatchNormalization":
        low, high = {1: (0.8, 1.2), 2: (-0.1, 0.1), 3: (-0.1, 0.1), 4: (0.5, 1.5)}[place]
        return drawn.uniform(low, high, dims).astype(np.float32)
    if user == "Mul":
        return drawn.uniform(0.8, 1.2, dims).astype(np.float32)
    return drawn.uniform(-0.1, 0.1, dims).astype(np.float32)


def _user(graph: onnx.GraphProto, name: str) -> tuple[str, int]:
    """The operator that a weight goes into, and as which input."""
    for node in graph.node:
        if name in node.input:
            if node.op_type in FOLDED:
                return _user(graph, node.output[0])
            return node.op_type, list(node.input).index(name)
    return "", 0


def images(model: onnx.ModelProto) -> list[np.ndarray]:
    """Two photographs for the one input that counts, normalised as usual."""
    height, width = (dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim[2:])
    out = []
    for picture in (skimage.data.astronaut(), skimage.data.coffee()):
        scaled = np.asarray(Image.fromarray(picture).resize((width, height)), np.float32) / 255
        out.append(((scaled - 0.45) / 0.225).transpose(2, 0, 1)[None].astype(np.float32))
    return out
