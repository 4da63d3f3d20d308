"""One file a family: its configuration, its blocks, its table of weights."""
