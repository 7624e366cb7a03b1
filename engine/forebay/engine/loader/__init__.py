"""Reading checkpoints: GGUF files and Hugging Face directories.

`checkpoint` is the door for everyone else. The metadata half (configuration, tokenizer, digest) imports no torch, so
the API process stays small; tensors are read by `weights`, which only the core process imports.
"""
