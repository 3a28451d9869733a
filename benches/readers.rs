//! Reading one large CSV file by workers and by processes: whole runs of the binary, with the state
//! in memory.
//!
//! `cargo bench --bench readers`. Rows have a key of 100 and eight columns; with `timed` an event
//! and an arrival time as well. `HUSHFLOW_ROWS` sets their number, `HUSHFLOW_ROUNDS` how often all
//! are measured in turn; the fastest counts. Each process of two has a core of its own and, if
//! this may be made, a network namespace of its own.
#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const DIMENSION: usize = 8;
const KEYS: u64 = 100;
const EPOCHS: u64 = 20;

fn main() {
    // `cargo test --all-targets` starts benchmarks, too.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let (rows, rounds) = (number("HUSHFLOW_ROWS", 2_000_000), number("HUSHFLOW_ROUNDS", 3));
    let machines = Machines::new();
    println!("{:<8} {:<34} {:>10} {:>6}", "rows", "readers", "rows/s", "ratio");
    for timed in [false, true] {
        let directory = TempDir::new_in("/dev/shm").expect("there is room");
        write_data(&directory.path().join("data.csv"), rows, timed);
        let file = directory.path().join("pipeline.toml");
        fs::write(&file, pipeline(rows, timed)).expect("there is room");
        let runs: [(&str, &dyn Fn() -> Duration); 5] = [
            ("one process on one core", &|| whole_run(&file, 1, Some("0"))),
            ("one worker", &|| whole_run(&file, 1, None)),
            ("two workers", &|| whole_run(&file, 2, None)),
            ("two processes on one core each", &|| two_processes(&file, &machines, false)),
            ("the same, of which one reads", &|| two_processes(&file, &machines, true)),
        ];
        let mut first = 0.0;
        for (name, run) in runs {
            let fastest = (0..rounds).map(|_| run()).min().unwrap_or_default();
            let speed = rows as f64 / fastest.as_secs_f64();
            first = if first == 0.0 { speed } else { first };
            let kind = if timed { "timed" } else { "counted" };
            println!("{kind:<8} {name:<34} {speed:>10.0} {:>6.2}", speed / first);
        }
    }
}

fn write_data(path: &Path, rows: u64, timed: bool) {
    let names: Vec<String> = (0..DIMENSION).map(|column| format!("x{column}")).collect();
    let mut text = if timed { "event,arrival,".into() } else { String::new() };
    text += &format!("key,{}\n", names.join(","));
    let mut random = 1u64;
    let mut below = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    for row in 0..rows {
        if timed {
            let _ = write!(text, "{},{},", time((row / 100).saturating_sub(below(30))), time(row / 100));
        }
        let _ = write!(text, "key{}", below(KEYS));
        for _ in 0..DIMENSION {
            let _ = write!(text, ",{}.{:03}", below(20) as i64 - 10, below(1000));
        }
        text.push('\n');
    }
    fs::write(path, text).expect("there is room");
}

fn time(second: u64) -> String {
    let (day, hour, minute) = (1 + second / 86_400, second / 3600 % 24, second / 60 % 60);
    format!("2020-01-{day:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}

fn pipeline(rows: u64, timed: bool) -> String {
    let column = |column| format!("{{ name = 'x{column}', lower = -10, upper = 10 }}");
    let columns: Vec<String> = (0..DIMENSION).map(column).collect();
    let keys: Vec<String> = (0..KEYS).map(|key| format!("'key{key}'")).collect();
    let epochs = match timed {
        true => format!(
            "time = 'event', arrival = 'arrival', start = '2020-01-01', length = '{}s', allowed_lateness = '30s'",
            rows.div_ceil(100 * EPOCHS)
        ),
        false => format!("records = {}", rows.div_ceil(EPOCHS)),
    };
    format!(
        "name = 'readers'\nsource.path = 'data.csv'\ncolumns = [{}]\n\
         key = {{ column = 'key', values = [{}] }}\nepochs = {{ {epochs}, horizon = {EPOCHS} }}\n\
         privacy = {{ epsilon = 1, delta = 1e-6 }}\nrelease = {{ strategy = 'blt:4', workload = 'prefix' }}\n",
        columns.join(", "),
        keys.join(", ")
    )
}

/// Runs a program on one core, in a network namespace if there is one.
fn on_core(core: Option<&str>, namespace: Option<&str>) -> Command {
    let mut words: Vec<&str> = Vec::new();
    namespace.iter().for_each(|name| words.extend(["ip", "netns", "exec", name]));
    core.iter().for_each(|core| words.extend(["taskset", "-c", core]));
    words.push(env!("CARGO_BIN_EXE_hushflow"));
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

fn start(mut command: Command, pipeline: &Path, directory: &TempDir, arguments: &[&str]) -> Child {
    command.arg("run").arg(pipeline).arg("--state").arg(directory.path().join("state")).arg("--quiet");
    command.args(arguments).env("HOME", directory.path()).stdin(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("the binary starts")
}

fn finish(mut child: Child) {
    let status = child.wait().expect("it was started");
    assert!(status.success(), "{status}");
}

fn whole_run(pipeline: &Path, workers: usize, core: Option<&str>) -> Duration {
    let directory = TempDir::new_in("/dev/shm").expect("there is room");
    let begin = Instant::now();
    finish(start(on_core(core, None), pipeline, &directory, &["--workers", &workers.to_string()]));
    begin.elapsed()
}

/// With `one_reads`, exact counts are shown, so the first process reads alone.
fn two_processes(pipeline: &Path, machines: &Machines, one_reads: bool) -> Duration {
    let directory = TempDir::new_in("/dev/shm").expect("there is room");
    let key = directory.path().join("cluster.key");
    let key = key.to_str().expect("a name of plain letters");
    let made = Command::new(env!("CARGO_BIN_EXE_hushflow")).args(["key", key]).stdout(Stdio::null()).status();
    assert!(made.is_ok_and(|status| status.success()));
    let begin = Instant::now();
    let processes = ["0", "1"].map(|process| {
        let mut arguments = vec!["--hosts", machines.hosts, "--process", process, "--key", key];
        if one_reads {
            arguments.push("--counters");
        }
        let namespace = machines.namespaces.get(usize::from(process == "1")).copied();
        start(on_core(Some(process), namespace), pipeline, &directory, &arguments)
    });
    processes.into_iter().for_each(finish);
    begin.elapsed()
}

/// Two network namespaces with a cable between them; none without the right to make them.
struct Machines {
    namespaces: &'static [&'static str],
    hosts: &'static str,
}

const NAMES: &[&str] = &["hushflow-readers-0", "hushflow-readers-1"];

impl Machines {
    fn new() -> Self {
        let cable = [
            "link", "add", "eth0", "netns", NAMES[0], "type", "veth", "peer", "name", "eth0", "netns",
            NAMES[1],
        ];
        let connected = |(name, address): (&&str, &str)| {
            ip(&["-n", name, "address", "add", address, "dev", "eth0"])
                && ip(&["-n", name, "link", "set", "eth0", "up"])
        };
        let made = NAMES.iter().all(|name| ip(&["netns", "add", name]))
            && ip(&cable)
            && NAMES.iter().zip(["10.84.0.1/24", "10.84.0.2/24"]).all(connected);
        match made {
            true => Machines { namespaces: NAMES, hosts: "10.84.0.1:2101,10.84.0.2:2101" },
            false => Machines { namespaces: &[], hosts: "127.0.0.1:2101,127.0.0.1:2102" },
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        NAMES.iter().for_each(|name| drop(ip(&["netns", "delete", name])));
    }
}

fn ip(arguments: &[&str]) -> bool {
    Command::new("ip").args(arguments).output().is_ok_and(|done| done.status.success())
}
