"""Which way to train together is sooner done over given links: `fedgossip topology advise`."""
