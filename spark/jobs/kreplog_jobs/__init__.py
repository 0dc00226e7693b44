"""Pipelines that a log needs, as Spark jobs: `python -m kreplog_jobs.profile --help`, or the file with spark-submit."""
