"""Builds the compiled half of kreplog: every `kreplog/_native/*.pyx` becomes an extension module of its own.

All other metadata stands in pyproject.toml. `KREPLOG_DEBUG=1` builds with bounds checks and line tracing; changing the
flavour, the directives or Cython itself rebuilds everything, changing a source rebuilds what depends on it.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from Cython.Build import cythonize
from Cython.Compiler import Options
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("kreplog", "_native")
DEBUG = os.environ.get("KREPLOG_DEBUG", "0") not in ("", "0")
JOBS = os.cpu_count() or 1

DIRECTIVES: dict[str, Any] = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": DEBUG,
    "embedsignature": True,
    "linetrace": DEBUG,
}
MACROS: list[tuple[str, str | None]] = [("CYTHON_TRACE_NOGIL", "1")] if DEBUG else []
# Who asks for a level of optimization in CFLAGS gets it; otherwise Python's own, often lower, would be the default.
OPTIMIZE = [] if "-O" in os.environ.get("CFLAGS", "") else ["-O1" if DEBUG else "-O3"]
COMPILE_ARGS = [*OPTIMIZE, "-g" if DEBUG else "-g0"]


def native_extensions() -> list[Extension]:
    """One Extension per .pyx. Cython itself follows what each cimports; C headers it leaves to `depends`."""
    headers = sorted(str(path) for path in NATIVE.glob("*.h"))
    return [
        Extension(
            ".".join(source.with_suffix("").parts),
            [str(source)],
            include_dirs=[str(NATIVE)],
            define_macros=MACROS,
            extra_compile_args=COMPILE_ARGS,
            depends=headers,
        )
        for source in sorted(NATIVE.glob("*.pyx"))
    ]


class BuildNative(build_ext):
    """Translates only when something is really compiled (not for an sdist), and on all cores."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or JOBS
        if self.editable_mode or self.inplace:
            # An editable install is given temporary folders, which would recompile everything each time; one fixed
            # place lets it and `build_ext --inplace` share their work.
            self.build_lib, self.build_temp = "build/editable/lib", "build/editable/temp"
            # Where kreplog is developed Cython's warnings stop the build: a negative index would read wild memory.
            Options.warning_errors = True

    def build_extensions(self) -> None:
        flavour = repr((version("cython"), DIRECTIVES, MACROS, COMPILE_ARGS))
        marker = Path("build", "flavour")
        self.force = self.force or not marker.exists() or marker.read_text() != flavour
        translated = cythonize(
            self.extensions,
            build_dir="build/cython",
            compiler_directives=DIRECTIVES,
            force=self.force,
            nthreads=JOBS,
        )
        sources = {extension.name: extension.sources for extension in translated}
        for extension in self.extensions:
            extension.sources = sources[extension.name]
        super().build_extensions()
        marker.write_text(flavour)


if __name__ == "__main__":
    setup(ext_modules=native_extensions(), cmdclass={"build_ext": BuildNative})
