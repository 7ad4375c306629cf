"""``python -m asterism`` is the command line."""

from asterism.cli import main

if __name__ == "__main__":
    main()
