"""What a program imports: the library for one caller, for many, and vLLM's names of both."""
