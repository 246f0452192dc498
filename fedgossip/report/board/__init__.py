"""All runs of a folder on one page, during and after them; only their files are read.

heads      the small files of one run, for a line of a table
catalogue  all runs below a folder, found and read a piece at a time run_curves the curves of a chosen run
pages      answers to a browser
"""
