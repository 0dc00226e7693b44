"""What runs the cores: runners, store link, watchdog, event loop, start."""
