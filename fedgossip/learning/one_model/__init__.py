"""Training of one model by torch, the same bits each time: batches, optimisers, precision, scores."""
