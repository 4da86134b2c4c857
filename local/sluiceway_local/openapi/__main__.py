"""`python -m sluiceway_local.openapi`: writes the document; with `release`, releases it."""

import sys

from sluiceway_local.openapi import document

if sys.argv[1:] == ["release"]:
    document.release()
    print(f"released {document.RELEASED.relative_to(document.ROOT)}")  # noqa: T201
else:
    for path in document.write():
        print(f"wrote {path.relative_to(document.ROOT)}")  # noqa: T201
