"""The logs of a broker and the directories that they are in: loading, effects, fsyncs, failures, strays."""
