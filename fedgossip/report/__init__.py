"""What people look at: the page of a run, a run that is followed, and all runs of a folder."""
