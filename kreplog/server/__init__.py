"""The broker process: the only threads, sockets, files and real clocks around the cores."""
