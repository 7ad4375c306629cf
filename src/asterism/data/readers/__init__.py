"""One file per layout on disk: ``recognises(path)`` says whether it is the one, ``read(path)`` reads it."""
