"""What requests that generate have in common, whatever their endpoint: fields, the way to the engine's requests, usage."""
