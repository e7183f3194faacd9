"""Coverage-guided fuzzing of one harness: ``python -m support.fuzz_program NAME CORPUS [-max_total_time=SECONDS]``.

``any`` lets the first byte choose the harness; what follows the name is libFuzzer's. It ends with a traceback, and the
bytes that led there, at the first fault.
"""

import sys

import atheris

with atheris.instrument_imports(include=["dagster_versioned.delta"]):
    from support.fuzz_harnesses import HARNESSES, any_of

if __name__ == "__main__":
    atheris.Setup([sys.argv[0], *sys.argv[2:]], {**HARNESSES, "any": any_of}[sys.argv[1]])
    atheris.Fuzz()
