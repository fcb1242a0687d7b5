"""Runs of simulators in worker processes, with durable results that are never computed twice."""
