"""ZeroMQ publishing: encoding, sockets, access control, slow subscribers."""
