"""`python -m sluiceway_cli` is `sluiceway`."""

from sluiceway_cli.main import main

main()
