"""Holds the library's code below a limit. Arguments: library, limit in bytes."""
import subprocess
import sys


def main():
    out = subprocess.run(['size', sys.argv[1]], check=True, capture_output=True, text=True).stdout
    text, limit = int(out.splitlines()[1].split()[0]), int(sys.argv[2])
    print(f'text {text} bytes, limit {limit}')
    return text >= limit


if __name__ == '__main__':
    sys.exit(main())
