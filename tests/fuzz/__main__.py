"""``python -m tests.fuzz --records 1000000``: malformed and odd records through assemble → score → group → sink.

For any input, no exception escapes, every trajectory has exactly one fate, no record holds a non-finite number or is
too large for its topic, and a case takes time proportional to its bytes. The first violation ends the run with its seed
and case.
"""

import argparse
import logging
import sys

from tests.fuzz.run import fuzz


def main() -> int:
    """Returns 0 if every invariant held."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--records", type=int, default=100_000, help="how many records to send")
    parser.add_argument("--seed", type=int, default=1, help="of the cases")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    print("\n".join(fuzz(args.seed, args.records, progress_every=5_000).lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
