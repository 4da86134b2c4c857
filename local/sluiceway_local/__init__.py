"""The local stack: emulator, deployment and vendor simulator. None of it is ever shipped."""
