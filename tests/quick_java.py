"""Java's options for a short life."""

# The second compiler pays off after minutes.
QUICK_JAVA = "-XX:TieredStopAtLevel=1"
