"""
A run of prime-rl as it looks from outside: for the demo, the example and the tests.

It writes what such a run leaves behind, healthy or with a fault in it, and
imports nothing of ours: a mistake in one of our parsers cannot hide here.
Moments are seconds after the launch (`_s`); infinite means never.
"""
