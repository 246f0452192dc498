"""Pages for people: the page of a run, a followed run, and all runs of a folder.

It imports `privacy`, `data`, `topology` and `core`, and matplotlib; it reads a run's files and contacts no peer.
`page.reading` reads a run directory, `page.sections` makes its page; `watch` follows growing files; `board` lists a
folder's runs.
"""
