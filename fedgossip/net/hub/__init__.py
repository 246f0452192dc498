"""Links of a coordinator or a server and its clients: one address, many callers."""
