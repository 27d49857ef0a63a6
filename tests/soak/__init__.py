"""A soak test of a real federation with planted faults. Run it with `make soak`."""
