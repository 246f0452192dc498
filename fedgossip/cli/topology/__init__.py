"""Commands about graphs: list, show, compare, draw, advise, make.

It imports `topology` and `lab`.  `fedgossip topology show ring --n 8` makes the mixing and prints the guarantees of its
spectrum (`promises`).
"""
