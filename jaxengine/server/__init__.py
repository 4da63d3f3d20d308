"""An OpenAI-compatible HTTP front of the engine. No JAX here: `launch.run` is given the function that builds an engine."""
