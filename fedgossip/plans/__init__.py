"""An experiment becomes machines and links: plans, tasks, keys, budgets."""
