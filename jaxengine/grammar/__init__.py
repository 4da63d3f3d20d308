"""Structured output: which tokens may follow, so that a text ends up in the form that was asked for. Works with llguidance."""
