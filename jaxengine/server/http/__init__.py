"""What every request passes, whatever it asks: HTTP, keys, hosts, bodies, errors, streams."""
