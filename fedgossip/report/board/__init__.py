"""All runs of a folder on one page, during and after them; only their files are read.

heads      the small files of one run, for a line of a table
pages      all runs below a folder, the curves of a chosen run, and answers to a browser
"""
