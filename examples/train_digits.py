"""Trains the small convolutional network that ships inside the package, and writes its held-out images as files.

Run it with the `torch` extra and scikit-learn installed:  python examples/train_digits.py src/relume/demo

The data are scikit-learn's handwritten digits: 1,797 pictures of 8x8 pixels with 17 grey levels. A fifth of them, split
by class, is held out and never trained on. The network is written node by node in ONNX, with a batch of symbolic size.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

EPOCHS = 60


def network() -> nn.Sequential:
    """x [N,1,8,8] in 0..1 -> logits [N,10]."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def shifted(images: torch.Tensor) -> torch.Tensor:
    """Each picture moved by up to one pixel, so that the network does not learn places by heart."""
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    rows, columns = torch.randint(0, 3, (2, len(images))).tolist()
    return torch.stack([p[:, r : r + 8, c : c + 8] for p, r, c in zip(padded, rows, columns)])


def train(images: torch.Tensor, labels: torch.Tensor) -> nn.Sequential:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(32):
            loss = nn.functional.cross_entropy(model(shifted(images[batch])), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    return model.eval()


def to_onnx(model: nn.Sequential) -> onnx.ModelProto:
    """The trained network as ONNX, ending in a softmax."""
    nodes, weights = [], []

    def weight(name: str, tensor: torch.Tensor) -> str:
        weights.append(numpy_helper.from_array(tensor.detach().numpy(), name))
        return name

    value = "image"
    for index, layer in enumerate(model):
        out = f"value_{index}"
        if isinstance(layer, nn.Conv2d):
            inputs = [value, weight(f"weight_{index}", layer.weight), weight(f"bias_{index}", layer.bias)]
            nodes.append(helper.make_node("Conv", inputs, [out], f"conv_{index}", kernel_shape=[3, 3], pads=[1] * 4))
        elif isinstance(layer, nn.ReLU):
            nodes.append(helper.make_node("Relu", [value], [out], f"relu_{index}"))
        elif isinstance(layer, nn.MaxPool2d):
            nodes.append(
                helper.make_node("MaxPool", [value], [out], f"pool_{index}", kernel_shape=[2, 2], strides=[2, 2])
            )
        elif isinstance(layer, nn.Flatten):
            nodes.append(helper.make_node("Flatten", [value], [out], f"flatten_{index}", axis=1))
        elif isinstance(layer, nn.Linear):
            inputs = [value, weight(f"weight_{index}", layer.weight), weight(f"bias_{index}", layer.bias)]
            nodes.append(helper.make_node("Gemm", inputs, [out], f"linear_{index}", transB=1))
        value = out
    nodes.append(helper.make_node("Softmax", [value], ["probabilities"], "softmax", axis=1))
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10])],
        weights,
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def main(folder: Path) -> None:
    torch.manual_seed(7)
    data = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(
        data.images.astype(np.float32), data.target, test_size=0.2, stratify=data.target, random_state=7
    )
    model = train(torch.from_numpy(train_x[:, None] / 16), torch.from_numpy(train_y))
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    for index, (picture, label) in enumerate(zip(test_x, test_y)):
        # A grey level p of 0..16 is stored as 15 p, so whoever reads the file divides by 240.
        Image.fromarray((picture * 15).astype(np.uint8)).save(images / f"{index:03d}_is_{label}.png", optimize=True)
    with torch.no_grad():
        predicted = model(torch.from_numpy(test_x[:, None] / 16)).argmax(1).numpy()
    print(f"held-out accuracy: {(predicted == test_y).mean():.4f} of {len(test_y)}")
    onnx.save(to_onnx(model), folder / "digits.onnx")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
