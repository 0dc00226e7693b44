"""The ceiling, a C extension compiled on first use into `benchmarks/build/`: see `_ceiling.c` for what it does.

Owns only the compiling. The folder's name carries a hash of the sources and flags, so a change is compiled from
scratch, and the module is put in place by one rename, so two processes may compile at once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.ceiling._ceiling import Reader, Writer, crc32c, implementation

__all__ = ["Reader", "Writer", "crc32c", "implementation"]

_FLAGS = ("-O3", "-g0", "-fPIC", "-std=gnu11")
_SOURCES = (Path(__file__).with_name("_ceiling.c"), Path(__file__).with_name("crc32c.h"))


def _build() -> Path:
    """Compile the extension unless this very source is compiled already; return the module's path."""
    linker = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")
    identity = hashlib.sha256(b"".join(source.read_bytes() for source in _SOURCES) + repr((linker, _FLAGS)).encode())
    folder = Path(__file__).parents[1] / "build" / f"ceiling-{identity.hexdigest()[:16]}"
    module = folder / f"_ceiling{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not module.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / module.name
            include = f"-I{sysconfig.get_path('include')}"
            subprocess.run([*linker, *_FLAGS, include, str(_SOURCES[0]), "-o", str(made)], check=True)
            os.replace(made, module)
    return module


def _load() -> None:
    spec = importlib.util.spec_from_file_location("benchmarks.ceiling._ceiling", _build())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    globals().update({name: getattr(module, name) for name in __all__})


if not TYPE_CHECKING:
    _load()
