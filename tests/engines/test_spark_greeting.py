"""What a JVM says on stderr: its greeting is left out, all else is passed on, for as long as it lives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

GREETING = """\
WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/25 00:32:48 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.0.1; using 192.0.2.2 instead
26/11/25 00:32:48 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
Setting Spark log level to "ERROR".
26/11/25 00:32:50 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform...
"""

PROGRAM = """
import os, subprocess, sys
from dagster_versioned.engines.spark.greeting import without_greeting

with without_greeting():
    says = f"cat {sys.argv[1]} >&2; echo an error >&2; read line; echo $line >&2; printf unended >&2"
    child = subprocess.Popen(["sh", "-c", says], stdin=subprocess.PIPE, text=True)
    os.write(2, b"meanwhile\\n")  # at once: `print` writes the end of the line by itself, and the child between
os.write(2, b"after\\n")
child.communicate("much later")
import threading
[thread.join(10) for thread in threading.enumerate() if thread.name == "stderr of the JVM"]
if len(sys.argv) > 2:
    with without_greeting():
        raise RuntimeError("It did not start.")
"""


def heard(folder, *arguments):
    """What comes out of stderr, line by line, of a program whose child greets."""
    (folder / "greeting").write_text(GREETING)
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", PROGRAM, str(folder / "greeting"), *arguments]
    return subprocess.run(command, env=env, check=False, capture_output=True, text=True).stderr.splitlines()


def test_the_greeting_alone_is_left_out(tmp_path):
    lines = heard(tmp_path)
    assert sorted(lines) == sorted(["an error", "meanwhile", "after", "much later", "unended"])
    assert lines.index("an error") < lines.index("much later")


def test_stderr_is_what_it_was_where_the_start_fails(tmp_path):
    assert heard(tmp_path, "fails")[-1] == "RuntimeError: It did not start."


IN_THREADS = """
import os, threading
from dagster_versioned.engines.spark.greeting import without_greeting

def start(times):
    for _ in range(times):
        with without_greeting(), without_greeting():
            pass

before = os.fstat(2).st_ino
threads = [threading.Thread(target=start, args=(100,)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert os.fstat(2).st_ino == before, "stderr is another file"
"""


def test_stderr_is_what_it_was_where_several_threads_start_sessions():
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", IN_THREADS], env=env, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_without_stderr_starts_one_as_well(tmp_path):
    """Its descriptor may be that of another file by then, which nobody else is to write to."""
    program = f"""
import os
assert os.open({str(tmp_path / "other")!r}, os.O_CREAT | os.O_WRONLY) == 2
from dagster_versioned.engines.spark.greeting import without_greeting
with without_greeting():
    assert os.readlink("/proc/self/fd/2") == {str(tmp_path / "other")!r}
"""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", program]
    assert subprocess.run(command, env=env, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.spark
def test_a_session_that_we_start_says_nothing(tmp_path):
    program = """
from dagster_versioned.engines.spark.session import default_session
print(default_session().range(10).repartition(3).count())
"""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("10\n", "")
