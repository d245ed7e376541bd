"""Estimates in, text out: tables, JSON, Markdown. Computes nothing."""
