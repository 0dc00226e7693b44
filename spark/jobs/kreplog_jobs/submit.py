"""The jobs for spark-submit, which runs files and no modules:

    spark-submit --master spark://host:7077 .../kreplog_jobs/submit.py export data --output lake

Python looks for modules beside the file that it runs first. So a job's own file does not run: `import profile`, which
Python's library does for PySpark, would find the job of that name.
"""

from __future__ import annotations

import os
import runpy
import sys

JOBS = ("audit", "compact", "export", "load", "mirror", "profile")


def main() -> None:
    """Run the job that is named first, with all other arguments. Exits with status 2 if there is none of that name."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    if len(sys.argv) < 2 or sys.argv[1] not in JOBS:
        print(f"error: name a job first, one of {', '.join(JOBS)}; each has --help", file=sys.stderr)
        sys.exit(2)
    name = sys.argv.pop(1)
    runpy.run_module(f"kreplog_jobs.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
