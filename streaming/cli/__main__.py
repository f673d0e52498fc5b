"""`python -m streaming.cli`: the same as `delayline`."""

from streaming.cli.app import main

main()
