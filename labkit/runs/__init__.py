"""Published training runs: read from a table, predicted by replaying layer-level traces, judged against what was measured."""
