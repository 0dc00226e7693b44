"""The decisions: state machines and rules, values in and values out; no thread, socket, file, clock or chance."""
