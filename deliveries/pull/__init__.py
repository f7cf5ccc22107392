"""Pulling: leases of a subscription's messages, their acknowledgement and their deadlines.

Leases live in Redis, on the same lanes that pushing uses, so that a subscription can change between the two at any
time. An acknowledgement leaves the database first, then Redis: a crash between the two costs a duplicate, never a
message.
"""
