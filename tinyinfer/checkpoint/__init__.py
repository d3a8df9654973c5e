"""From bytes on disk to named arrays: safetensors, GGUF, foreign formats; and how models are obtained."""
