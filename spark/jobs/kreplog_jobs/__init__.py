"""Pipelines that a log needs, as Spark jobs: `python -m kreplog_jobs.profile --help`, submit.py with spark-submit."""
