"""Running simulators so that no result is lost or computed twice."""
