"""Between text and ids: the tokenizer, chat templates, and text that comes a token at a time."""
