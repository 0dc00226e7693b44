"""What the `kreplog` command can do, a module for each group of its commands; kreplog.cli puts them together."""
