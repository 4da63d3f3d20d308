"""GGUF: one file with a model's weights, its configuration and its tokenizer.

Its configuration and tokenizer are written once as the files that a checkpoint directory has (`directory`), with an account
of its tensors under the names of that checkpoint (`architectures`, `settings`); weights are then read where they lie (`file`).
"""
