"""From options to a running engine: the one room that sees both halves."""
