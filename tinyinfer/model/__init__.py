"""From ids to logits: weights by name, one layer, one forward pass for everything."""
