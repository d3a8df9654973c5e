"""From bytes on disk to named arrays: folders, safetensors, GGUF, what other programs quantized, and how models are obtained."""
