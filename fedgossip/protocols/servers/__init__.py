"""Parameter servers: shards of a model, and the workers that pull and push them."""
