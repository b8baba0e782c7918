"""From files to a model and a tokenizer: what an engine needs before its first request."""
