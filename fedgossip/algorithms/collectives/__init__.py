"""All-reduce as tables: who sends which part of its vector to whom, and what is done with what comes.

A collective is a pure function of the number of workers; one machine runs any of them, and tests read them without one.
"""
