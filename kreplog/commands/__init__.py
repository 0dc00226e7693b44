"""The commands of `kreplog`: their arguments, output and exit status."""
