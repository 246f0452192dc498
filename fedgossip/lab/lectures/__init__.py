"""Lectures: topics of a course on distributed training, each comparing a formula with a run.

topics/*.toml declare them: paragraphs, a measure with its arguments, numbers, and questions.  A number is an expression
of the measure's results, its formula another of the same names.  `topics` reads, `measures` simulates, `lesson`
compares, `report/page/lectures` draws.
"""
