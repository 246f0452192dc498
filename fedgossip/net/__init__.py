"""The driver with sockets: one process per peer, ZeroMQ with CURVE between them."""
