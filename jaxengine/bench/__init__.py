"""`jaxengine bench`: how fast an engine or a running server is, in vLLM's terms."""
