"""`python -m fedgossip` is `fedgossip`."""

from fedgossip.cli import main

if __name__ == "__main__":
    main()
