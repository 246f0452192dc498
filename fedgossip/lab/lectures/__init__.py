"""Lectures: topics of a course on distributed training, each with a formula beside a run.

topics/*.toml declare them, a table per topic: three paragraphs, a measure with its arguments, numbers, and questions.
A number is an expression of what the measure returned, its formula another of the same names: the printed formula is
the computed one.  `fedgossip lecture ring`: `topics` reads the table, `measures` simulates, `lesson` compares,
`report/page/lectures` draws.
"""
