"""Plans of workers on one model: all-reduce, parameter servers, MapReduce."""
