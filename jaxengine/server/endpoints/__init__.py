"""One folder an endpoint: its protocol, its answer, its route."""
