"""Publishes over ZeroMQ: encodes messages, opens sockets, controls access and finds slow subscribers."""
