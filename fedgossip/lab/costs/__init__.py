"""What a round of each way to train in parallel costs, by formula: the alpha-beta model, with the simulator's links.

Tests hold every formula against the simulator, whose messages really pass through those links.
"""
