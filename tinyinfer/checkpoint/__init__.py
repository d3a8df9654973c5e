"""From bytes on disk to named arrays: folders, safetensors, GGUF, and how models are obtained."""
