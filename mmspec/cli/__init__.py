"""The command line, ``mmspec COMMAND``. Nothing here loads torch before a command runs."""


def main() -> None:
    """Run the command line of this process; the entry point of the package."""
    from mmspec.cli.app import app

    app(prog_name="mmspec")
