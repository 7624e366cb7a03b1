"""Counter-based random numbers: Philox4x32-10 over numpy arrays.

A number is a pure function of (seed, position), so a request's draws depend neither on its batch mates nor on how
often it was preempted. Algorithm and constants: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

UintArray = npt.NDArray[np.uint64]

_ROUNDS: Final = 10
_MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL: Final = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW: Final = np.uint64(0xFFFFFFFF)
_32: Final = np.uint64(32)


def philox(
    counter: tuple[UintArray, UintArray, UintArray, UintArray], key: tuple[UintArray, UintArray]
) -> tuple[UintArray, UintArray, UintArray, UintArray]:
    """Four random 32-bit words for each element; all arrays are uint64 that hold 32-bit values."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (second >> _32) ^ c1 ^ k0, second & _LOW, (first >> _32) ^ c3 ^ k1, first & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def uniform(seeds: UintArray, positions: UintArray) -> npt.NDArray[np.float64]:
    """One number in the open interval (0, 1) for each (seed, position), with 52 random bits."""
    zero = np.zeros_like(positions)
    counter = (positions & _LOW, positions >> _32, zero, zero)
    high, low, _, _ = philox(counter, (seeds & _LOW, seeds >> _32))
    bits = (high << np.uint64(21)) | (low >> np.uint64(11))
    # 52 bits and a half: with 53 the largest sum would round to 1.0.
    return ((bits >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-52
