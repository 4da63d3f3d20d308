"""How the embedded model is made: a corpus that writes itself, a tokenizer, and a Llama in plain JAX.

`python -m examples.embedded_model` trains it from a seed; needs the `train` extra.
"""
