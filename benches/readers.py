#!/usr/bin/env python3
"""Reading large files by workers and by processes: whole runs, with the state in memory.

    cargo build --profile dist && benches/readers.py target/dist/hushflow
    benches/readers.py target/dist/hushflow --format parquet      # needs pyarrow
    benches/readers.py target/dist/hushflow --format gzip

Rows have a key and eight columns and, if "timed", an event and an arrival time. Each process of two
has a core of its own and, if this may be made (as root), a network namespace of its own, which also
counts the bytes exchanged. All cases are measured in turn; the fastest of the rounds counts. The
seconds of processor time are those of all processes of that run.
"""

import argparse
import gzip
import os
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import time

NAMES = ["hushflow-readers-0", "hushflow-readers-1"]

# Rows of a packed file: few enough to be one range.
PACKED_ROWS = 50_000


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True).returncode == 0


def connected():
    """Makes two network namespaces with a cable between them, if possible."""
    cable = f"link add eth0 netns {NAMES[0]} type veth peer name eth0 netns {NAMES[1]}"
    made = all(ip("netns", "add", name) for name in NAMES) and ip(*cable.split())
    for number, name in enumerate(NAMES):
        made = made and ip("-n", name, "address", "add", f"10.84.0.{number + 1}/24", "dev", "eth0")
        made = made and ip("-n", name, "link", "set", "eth0", "up")
    return made


def exchanged():
    """Bytes that the first namespace has received and sent."""
    counters = [f"/sys/class/net/eth0/statistics/{way}_bytes" for way in ["rx", "tx"]]
    read = ["ip", "netns", "exec", NAMES[0], "cat", *counters]
    return [int(line) for line in subprocess.run(read, capture_output=True, text=True).stdout.split()]


def written(second):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1577836800 + second))


def write_data(path, rows, keys, columns, timed):
    source = random.Random(1)
    numbers = [f"{source.uniform(-10, 10):.3f}" for _ in range(1009)]
    with open(path, "w") as file:
        file.write(("event,arrival," if timed else "") + "key," + ",".join(f"x{c}" for c in range(columns)) + "\n")
        for row in range(rows):
            values = ",".join(numbers[(row * 31 + c * 17 + row // 1009) % 1009] for c in range(columns))
            times = f"{written(max(0, row // 100 - row * 7 % 30))},{written(row // 100)}," if timed else ""
            file.write(f"{times}key{row * 7919 % keys},{values}\n")


def as_format(form, folder):
    """Writes the rows of data.csv in a format, and returns the names of the files."""
    if form == "csv":
        return ["data.csv"]
    if form == "parquet":
        from pyarrow import csv, parquet

        parquet.write_table(csv.read_csv(f"{folder}/data.csv"), f"{folder}/data.parquet")
        return ["data.parquet"]
    header, *lines = pathlib.Path(folder, "data.csv").read_text().splitlines(keepends=True)
    parts = [lines[start : start + PACKED_ROWS] for start in range(0, len(lines), PACKED_ROWS)]
    for number, part in enumerate(parts):
        with gzip.open(f"{folder}/data{number}.csv.gz", "wt") as file:
            file.writelines([header, *part])
    return [f"data{number}.csv.gz" for number in range(len(parts))]


def pipeline(files, rows, keys, columns, timed, epochs):
    by = f"records = {-(-rows // epochs)}"
    if timed:
        length = -(-rows // (100 * epochs))
        by = f"time = 'event', arrival = 'arrival', start = '2020-01-01', length = '{length}s', allowed_lateness = '30s'"
    bounds = ",".join(f"{{ name = 'x{c}', lower = -10, upper = 10 }}" for c in range(columns))
    names = ",".join(f"'key{key}'" for key in range(keys))
    return f"""name = 'readers'
source.path = {files}
columns = [{bounds}]
key = {{ column = 'key', values = [{names}] }}
epochs = {{ {by}, horizon = {epochs} }}
privacy = {{ epsilon = 1, delta = 1e-6 }}
release = {{ strategy = 'blt:4', workload = 'prefix' }}
"""


class Lab:
    def __init__(self, binary, folder, has_machines):
        self.binary, self.folder, self.has_machines = binary, folder, has_machines

    def run(self, cases):
        """Runs processes to their ends; each has arguments, a core and a namespace, or neither."""
        with tempfile.TemporaryDirectory(dir=self.folder) as directory:
            environment = dict(os.environ, HOME=directory, HUSHFLOW_STRATEGIES="/dev/null/kept")
            before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            started = []
            for arguments, core, machine in cases:
                words = ["ip", "netns", "exec", NAMES[machine]] if machine is not None and self.has_machines else []
                words += ["taskset", "-c", str(core)] if core is not None else []
                words += [self.binary, "run", f"{self.folder}/pipeline.toml", "--quiet"]
                words += ["--state", f"{directory}/state", *arguments]
                started.append(subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True))
            for process in started:
                _, errors = process.communicate()
                if process.returncode != 0:
                    sys.exit(f"a run failed: {errors}")
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            return time.monotonic() - begin, used

    def two(self, *more):
        """Two processes on one core each."""
        hosts = "10.84.0.1:2101,10.84.0.2:2101" if self.has_machines else "127.0.0.1:2101,127.0.0.1:2102"
        common = ["--hosts", hosts, "--key", f"{self.folder}/cluster.key", *more]
        return self.run([([*common, "--process", str(process)], process, process) for process in [0, 1]])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--format", choices=["csv", "parquet", "gzip"], default="csv")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    has_machines = connected()
    try:
        for timed in [False, True]:
            with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
                measure(options, folder, timed, has_machines)
    finally:
        for name in NAMES:
            ip("netns", "delete", name)


def measure(options, folder, timed, has_machines):
    write_data(f"{folder}/data.csv", options.rows, options.keys, options.columns, timed)
    files = as_format(options.format, folder)
    text = pipeline(files, options.rows, options.keys, options.columns, timed, options.epochs)
    pathlib.Path(folder, "pipeline.toml").write_text(text)
    binary = str(options.binary.resolve())
    subprocess.run([binary, "key", f"{folder}/cluster.key"], check=True, capture_output=True)
    lab = Lab(binary, folder, has_machines)
    cases = {
        "one process on one core": lambda: lab.run([([], 0, None)]),
        "one worker": lambda: lab.run([([], None, None)]),
        "two workers": lambda: lab.run([(["--workers", "2"], None, None)]),
        "two processes, one core each": lambda: lab.two(),
        "the same, process 0 reads alone": lambda: lab.two("--counters"),
    }
    print(f"{options.format}, {'timed' if timed else 'counted'}: {options.rows} rows, {options.keys} keys, {options.columns} columns")
    best = {name: (float("inf"), 0, [0, 0]) for name in cases}
    for _ in range(options.rounds):
        for name, case in cases.items():
            before = exchanged() if has_machines else [0, 0]
            seconds, used = case()
            moved = [now - then for now, then in zip(exchanged(), before)] if has_machines else [0, 0]
            best[name] = min(best[name], (seconds, used, moved))
    first = best["one process on one core"][0]
    print(f"{'':<34}{'rows/s':>12}{'ratio':>7}{'cpu s':>7}{'MB in':>9}{'MB out':>9}")
    for name, (seconds, used, moved) in best.items():
        received, sent = (f"{number / 1e6:.1f}" for number in moved)
        print(f"{name:<34}{options.rows / seconds:>12.0f}{first / seconds:>7.2f}{used:>7.2f}{received:>9}{sent:>9}")


if __name__ == "__main__":
    main()
