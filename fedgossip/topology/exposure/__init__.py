"""What a curious node can compute of other nodes' models."""
