"""The classical ways to train in parallel, each from one file, beside each other: `fedgossip compare`."""
