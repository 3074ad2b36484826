"""Collaborative training without sharing data: distributed selective SGD (Shokri & Shmatikov 2015)."""
