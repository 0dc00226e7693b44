"""What runs the cores: runners, effects, periodic work, store link, watchdog, event loop, start."""
