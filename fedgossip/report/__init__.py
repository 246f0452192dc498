"""Pages for people: the page of a run, a followed run, and all runs of a folder.

It imports `privacy`, `data`, `topology` and `core`, and matplotlib; it reads a run's files and asks no peer.
`page.reading` reads a run directory, `page.sections` makes the sections of its page, each empty where the run recorded
nothing; `watch` follows files that grow; `board` lists the runs of a folder.
"""
