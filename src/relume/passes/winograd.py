"""The static rule that chooses between a direct convolution and Winograd's.

It knows the weights' extents and the result's, never the batch, the target or a measurement: so the same layer has the
same bits wherever it is compiled. Costs are multiply-adds of one image; the factors were fitted to the kernels at 8 to
512 channels and 4x4 to 80x80 pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

from relume.base.dims import Dim
from relume.base.targets import BLOCK

TILES = (4, 2)
"""Pixels on a side of a tile; of equal cost the first is taken."""
TRANSFORMS = {4: (250, 200), 2: (100, 75)}
"""Of a tile: for each input channel to transform the inputs, for each output channel to transform the sums."""
FETCH = 13
"""Reading one weight from memory costs as much as using it for so many tiles (or pixels)."""
MARGIN = 1.25
"""How much dearer a direct convolution must be: the transformed weights take memory, and the result is less exact."""
LEAST_CHANNELS = 5
"""Fewer are read as they lie, by a direct convolution."""
MOST_CHANNELS = 512
"""More do not fit the memory that the kernel has for transformed inputs."""
MOST_BYTES = 16 << 20
"""Transformed weights of one layer in float32, at most."""
GUESS = 28 * 28 * 128
"""Elements of a result whose extents are not known: networks have fewer channels where there are more pixels."""


def tile(channels: int, outputs: int, extents: Sequence[Dim]) -> int | None:
    """The side of the tiles for a convolution of `channels` by `outputs` 3x3 windows with a result of `extents` (height
    and width), or None where a direct one is better."""
    if not LEAST_CHANNELS <= channels <= MOST_CHANNELS:
        return None
    guess = max(1, isqrt(GUESS // max(channels, outputs)))
    height, width = (extent if isinstance(extent, int) else guess for extent in extents)
    inputs, sums = (-(-count // BLOCK) * BLOCK for count in (channels, outputs))
    costs: dict[int, float] = {}
    for side in TILES:
        tiles, weights = -(-height // side) * -(-width // side), (side + 2) ** 2 * channels * sums
        if weights * 4 <= MOST_BYTES:
            there, back = TRANSFORMS[side]
            costs[side] = weights * (tiles + FETCH) + tiles * (there * inputs + back * sums)
    direct = 9 * channels * sums * (height * width + FETCH)
    best = min(costs, key=lambda side: costs[side], default=None)
    return best if best is not None and costs[best] * MARGIN <= direct else None
