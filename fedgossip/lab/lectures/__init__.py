"""Lectures: topics of a course on distributed training, each with a formula beside a run.

topics/*.toml declare them: paragraphs, a measure with its arguments, numbers, and questions.  A number is an expression
of what the measure returned, its formula another of the same names.  `topics` reads, `measures` simulates, `lesson`
compares, `report/page/lectures` draws.
"""
