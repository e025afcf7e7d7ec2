"""`python -m rwalk`: the command, where its script is not on the path."""

from rwalk.cli import main

if __name__ == "__main__":
    main()
