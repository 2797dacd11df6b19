"""Encoders: single-device code on packed tokens; distribution is applied from outside."""
