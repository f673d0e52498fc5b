"""Java options for short-lived processes."""

# The second compiler pays off only after minutes.
QUICK_JAVA = "-XX:TieredStopAtLevel=1"
