"""An on-demand fuzzer for the batch parser, guided by libFuzzer; not part of the test run, and atheris is not in `dev`.

    pip install atheris
    PYTHONPATH=. python tests/fuzz/atheris_batch.py -max_total_time=60

Each input is taken as a batch whose length and CRC are set right first, so that it reaches the record parser. Anything
but a sound batch or one of the typed refusals is a finding; what the parser accepts, the reference must read alike.
"""

from __future__ import annotations

import importlib
import struct
import sys
from typing import Any

from kreplog import errors
from kreplog._native import arrow, batch
from tests import reference
from tests.reference import Batch, Rec

REFUSALS = (errors.CorruptBatchError, errors.UnsupportedFormatError, errors.UnsupportedCompressionError)
SEED = reference.encode(Batch((Rec(0, 5, b"k", b"v" * 20, (("h", b"x"), ("n", None))), Rec(1, 3, None, None))))


def sealed(data: bytes) -> bytes:
    """`data`, padded to a header, with magic, length and CRC of a whole batch."""
    out = bytearray(data.ljust(reference.HEADER.size, b"\0"))
    struct.pack_into(">i", out, 8, len(out) - 12)
    out[16] = 2
    return reference.seal(bytes(out))


def one_input(data: bytes) -> None:
    found = sealed(data)
    try:
        info = batch.validate(found, deep=True)
        records = batch.decode(found)
        arrow.ArrowBuilder(["offset", "timestamp", "key", "value", "headers"]).add_batches(found, 0, 2**62)
    except REFUSALS:
        return
    if info.codec == 0 and not info.is_control and records:
        assert [Rec(*fields) for fields in records] == list(reference.decode(found).records)


def main() -> None:
    atheris: Any = importlib.import_module("atheris")

    def mutate(data: bytes, max_size: int, _seed: int) -> bytes:
        return sealed(atheris.Mutate(data if len(data) >= reference.HEADER.size else SEED, max_size))

    atheris.Setup(sys.argv, one_input, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
