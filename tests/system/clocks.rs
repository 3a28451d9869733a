//! Realistic streams: delayed, duplicated, from several sources, with jumping clocks. The exact
//! sums must equal those of plain loops over the rows, for several latenesses, any number of
//! workers and processes, and after a stop.

use std::fmt::Write;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use crate::harness::{
    Lab, Random, await_until, expected_sums, finish, hushflow, releases, run, run_as_two, stop, sums, wait,
};
use crate::servers::free_port;

/// The flights of the example, and three streams derived from them.
struct FlightStreams {
    header: String,
    rows: Vec<String>,
}

impl FlightStreams {
    fn new() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/flights_jan2013.csv");
        let text = std::fs::read_to_string(path).expect("the example data");
        let mut lines = text.lines();
        let header = format!("id,{}", lines.next().expect("a header"));
        // Every ninth row is enough, from all days.
        let rows = lines.enumerate().step_by(9).map(|(number, row)| format!("f{number},{row}")).collect();
        FlightStreams { header, rows }
    }

    fn csv(&self, rows: impl IntoIterator<Item = impl AsRef<str>>) -> String {
        rows.into_iter().fold(format!("{}\n", self.header), |mut text, row| {
            let _ = writeln!(text, "{}", row.as_ref());
            text
        })
    }

    /// Repeats every row up to 200 rows later, with the arrival of the row before it.
    fn doubled(&self) -> Vec<String> {
        let mut random = Random(1);
        let again = |(at, row): (usize, &String)| (at + 1 + random.below(200) as usize, row.clone());
        let mut rows: Vec<_> = self.rows.iter().enumerate().map(|(at, row)| (at, row.clone())).collect();
        rows.extend(self.rows.iter().enumerate().map(again).collect::<Vec<_>>());
        rows.sort_by_key(|(at, _)| *at);
        rows.into_iter().map(|(_, row)| row).collect()
    }

    /// One row in fifty is dated years ahead, one in fifty years ago.
    fn jumping(&self) -> Vec<String> {
        let jump = |(at, row): (usize, &String)| {
            let mut fields: Vec<&str> = row.split(',').collect();
            match at % 50 {
                20 => fields[2] = "2031-01-01T00:00:00Z",
                40 => fields[2] = "1999-01-01T00:00:00Z",
                _ => {}
            }
            fields.join(",")
        };
        self.rows.iter().enumerate().map(jump).collect()
    }
}

const REST: &str = "
[[columns]]
name = 'dep_delay'
lower = -60
upper = 240
[[columns]]
name = 'arr_delay'
lower = -90
upper = 270
[key]
column = 'origin'
values = ['EWR', 'JFK', 'LGA']
[privacy]
epsilon = 1
delta = 1e-6
[release]
strategy = 'square-root'
[state]
keep = 'all'
";

/// A pipeline over `sources` with this lateness and policy.
fn pipeline(sources: &str, lateness: &str, late: &str) -> String {
    format!(
        "name = 'flights'\n{sources}\n{REST}
[epochs]
time = 'event_time'
arrival = 'recorded_at'
start = '2013-01-01T05:00:00Z'
length = '1d'
allowed_lateness = '{lateness}'
late = '{late}'
horizon = 32
"
    )
}

/// Runs it to its end and compares the sums with plain loops.
fn check(lab: &Lab, name: &str, text: &str, workers: usize) -> Vec<Vec<i128>> {
    let path = lab.write(&format!("{name}.toml"), text);
    let state = lab.path(name);
    finish(&mut run(&path, &state, workers)).succeeded();
    let (found, expected) = (sums(&state), expected_sums(&path));
    assert!(expected.len() > 20 && expected.iter().any(|epoch| epoch[0] > 0), "a stream worth summing");
    assert!(found == expected, "{name}: the sums are not those of plain loops");
    found
}

#[test]
fn delayed_doubled_and_jumping_copies_give_the_sums_of_the_policy() {
    let (lab, flights) = (Lab::new(), FlightStreams::new());
    lab.write("plain.csv", flights.csv(&flights.rows));
    lab.write("doubled.csv", flights.csv(flights.doubled()));
    lab.write("jumping.csv", flights.csv(flights.jumping()));
    for (lateness, late) in [("0s", "fold"), ("2h", "drop"), ("6h", "fold"), ("36h", "drop")] {
        let source = |name: &str, more: &str| {
            pipeline(&format!("[source]\npath = '{name}.csv'\n{more}"), lateness, late)
        };
        let named = |what: &str| format!("{what} {lateness} {late}");
        let plain = check(&lab, &named("plain"), &source("plain", ""), 1);
        let jump = "largest_jump = '3d'";
        check(&lab, &named("jumping"), &source("jumping", jump), 2);
        assert!(check(&lab, &named("calm"), &source("plain", jump), 1) == plain, "no clock leaps here");
        if late == "drop" {
            let once = check(&lab, &named("once"), &source("doubled", "id = 'id'"), 2);
            assert!(once == plain, "duplicates count once, and late ones not at all");
            let twice = check(&lab, &named("twice"), &source("doubled", ""), 1);
            assert!(twice != plain, "without an id they are records");
        }
    }
    // A clock without a limit closes all epochs, and all later rows belong to closed epochs. The
    // check of the first rows stops such a run. The default limit prevents the jump.
    let source = "[source]\npath = 'jumping.csv'\nlargest_jump = '40000d'\n";
    let path = lab.write("believed.toml", pipeline(source, "6h", "drop"));
    let unchecked = finish(&mut run(&path, &lab.path("unchecked"), 1));
    unchecked.failed(1, &["by the public clock, most rows are of epochs that rows before them have closed"]);
    let default = source.replace("largest_jump = '40000d'\n", "");
    check(&lab, "default", &pipeline(&default, "6h", "drop"), 1);
    let source = source.replace("[source]", "[source]\npreflight = 'off'");
    let path = lab.write("believed.toml", pipeline(&source, "6h", "drop"));
    finish(&mut run(&path, &lab.path("believed"), 1)).succeeded();
    let counted: i128 = sums(&lab.path("believed")).iter().map(|epoch| epoch[0]).sum();
    assert!(counted <= 20, "all days closed at row 20");
}

/// Two feeds that share all flights, and a third with half of them again: duplicates, some of which
/// are late in the feed where they arrive first.
fn feeds(lab: &Lab, flights: &FlightStreams) -> String {
    let (east, west): (Vec<_>, Vec<_>) = flights.rows.iter().enumerate().partition(|(at, _)| at % 3 == 0);
    let rows = |rows: Vec<(usize, &String)>| flights.csv(rows.into_iter().map(|(_, row)| row));
    lab.write("east.csv", rows(east));
    lab.write("west.csv", rows(west));
    lab.write("again.csv", flights.csv(flights.rows.iter().step_by(2)));
    "[[sources]]\nname = 'east'\npath = 'east.csv'\nid = 'id'\nlargest_jump = '9d'
[[sources]]\nname = 'west'\npath = 'west.csv'\nid = 'id'\nallowed_lateness = '1h'\nidle = '10m'
[[sources]]\nname = 'again'\npath = 'again.csv'\nid = 'id'\nallowed_lateness = '2d'\n"
        .into()
}

#[test]
fn several_sources_are_summed_exactly_on_any_number_of_workers() {
    let (lab, flights) = (Lab::new(), FlightStreams::new());
    // The rows that arrive late at 'west' are on time at 'again' or absent there; the offline loops
    // account for both.
    let text = pipeline(&feeds(&lab, &flights), "12h", "drop");
    let one = check(&lab, "one", &text, 1);
    for workers in [2, 3] {
        assert!(check(&lab, &format!("{workers} workers"), &text, workers) == one);
    }
    let (path, state) = (lab.write("two.toml", &text), lab.path("two"));
    let [mut first, mut second] = run_as_two(&path, &state, 1);
    let second = second.spawn().expect("the second process starts");
    finish(&mut first).succeeded();
    wait(second).succeeded();
    assert!(sums(&state) == one, "as one process has them");
}

/// Rows of a growing stream: one per minute of `range`, with equal `event` and `arrival`, and a
/// value.
fn minutes(range: std::ops::Range<u64>, value: &str) -> String {
    range.fold(String::new(), |mut text, minute| {
        let time = format!("2020-01-01T{:02}:{:02}:00Z", minute / 60, minute % 60);
        let _ = writeln!(text, "{time},{time},{value}");
        text
    })
}

fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(path).expect("a file that grows");
    file.write_all(text.as_bytes()).expect("it grows");
}

/// A pipeline over two followed directories, with ten epochs of ten minutes.
fn growing(lab: &Lab, late: &str) -> PathBuf {
    for name in ["a", "b"] {
        std::fs::create_dir(lab.path(name)).expect("a directory");
        append(&lab.path(name).join("1.csv"), "event,arrival,x\n");
    }
    let source = |name: &str, more: &str| {
        format!(
            "[[sources]]\nname = '{name}'\npath = '{name}/*.csv'\nformat = 'csv'\nfollow = true\n{more}\n"
        )
    };
    lab.write(
        "growing.toml",
        format!(
            "name = 'growing'\n{}{}[[columns]]\nname = 'x'\nlower = 0\nupper = 1
[privacy]\nepsilon = 1\ndelta = 1e-6\n[release]\nstrategy = 'square-root'\n[state]\nkeep = 'all'
[epochs]\ntime = 'event'\narrival = 'arrival'\nstart = '2020-01-01'\nlength = '10min'\nhorizon = 10\nlate = '{late}'\n",
            source("a", ""),
            source("b", "idle = '3s'"),
        ),
    )
}

/// Returns the exact counts of all epochs.
fn counts(state: &Path) -> Vec<i128> {
    sums(state).iter().map(|epoch| epoch[0]).collect()
}

#[test]
fn an_idle_source_does_not_delay_epochs_and_its_later_rows_are_late() {
    for (late, fifth) in [("fold", 49), ("drop", 20)] {
        let lab = Lab::new();
        let (path, state) = (growing(&lab, late), lab.path("state"));
        let file = |name: &str| lab.path(name).join("1.csv");
        let start = || run(&path, &state, 2).spawn().expect("it starts");
        append(&file("a"), &minutes(0..41, "0.5"));
        append(&file("b"), &minutes(0..11, "0.5"));
        let running = start();
        await_until("an epoch that both have passed", || !releases(&state).is_empty());
        // b becomes idle. Its tenth minute is in epoch 2, which closes with a's.
        await_until("epochs without b", || releases(&state).len() == 4);
        stop(&running);
        wait(running).succeeded();
        assert_eq!(counts(&state), [20, 11, 10, 10]);
        // b continues in closed epochs and catches up. Its minutes 11 to 39 are late, 40 to 49 are
        // not.
        append(&file("b"), &minutes(11..61, "0.5"));
        let running = start();
        append(&file("a"), &minutes(41..61, "0.5"));
        await_until("epochs of both", || releases(&state).len() == 6);
        stop(&running);
        wait(running).succeeded();
        assert_eq!(counts(&state), [20, 11, 10, 10, fifth, 20], "{late}");
        for list in ["followed-1", "followed-2"] {
            let list = std::fs::read(state.join(list)).expect("a list of files");
            assert_eq!(list.windows(5).filter(|name| name == b"1.csv").count(), 1);
        }
    }
}

/// A server that is away, a listening source without a peer and a folder without a file hold up no
/// other source. Once they are there, their rows count once, those of closed epochs in the oldest
/// open one.
#[test]
fn a_source_that_is_not_there_yet_holds_up_no_other() {
    for scheme in ["tcp", "tcp-listen"] {
        let (lab, port) = (Lab::new(), free_port());
        growing(&lab, "fold");
        let text = std::fs::read_to_string(lab.path("growing.toml")).expect("a pipeline");
        let socket = format!(
            "[[sources]]\nname = 'c'\npath = '{scheme}://127.0.0.1:{port}'\nformat = 'csv'\nidle = '3s'\n"
        );
        let path = lab.write("growing.toml", text.replacen("[[sources]]", &(socket + "[[sources]]"), 1));
        let (state, file) = (lab.path("state"), |name: &str| lab.path(name).join("1.csv"));
        std::fs::remove_file(file("b")).expect("an empty folder");
        append(&file("a"), &minutes(0..41, "0.5"));
        let mut running = run(&path, &state, 2).spawn().expect("it starts");
        await_until("epochs without the others", || releases(&state).len() == 4);
        if scheme == "tcp" {
            stop(&running);
            wait(running).succeeded();
        } else {
            running.kill().expect("it can be killed");
            wait(running);
        }
        assert_eq!(counts(&state), [10; 4], "{scheme}");
        let rows = "event,arrival,x\n".to_owned() + &minutes(0..61, "0.5");
        append(&file("b"), &rows);
        let listener =
            (scheme == "tcp").then(|| TcpListener::bind(("127.0.0.1", port)).expect("a free port"));
        let running = run(&path, &state, 2).spawn().expect("it starts");
        let mut peer = match listener {
            Some(listener) => listener.accept().expect("the run").0,
            None => {
                let connect = || TcpStream::connect(("127.0.0.1", port));
                await_until("it listens", || connect().is_ok());
                connect().expect("it listens")
            }
        };
        peer.write_all(rows.as_bytes()).expect("it reads");
        append(&file("a"), &minutes(41..61, "0.5"));
        await_until("epochs of all", || releases(&state).len() == 6);
        stop(&running);
        wait(running).succeeded();
        // Minutes 0 to 39 of two sources are late.
        assert_eq!(counts(&state), [10, 10, 10, 10, 110, 30], "{scheme}");
    }
}

#[test]
fn each_source_resumes_where_a_killed_run_stopped() {
    let (lab, flights) = (Lab::new(), FlightStreams::new());
    let text = pipeline(&feeds(&lab, &flights), "12h", "drop");
    let path = lab.write("pipeline.toml", text.replace("'1d'", "'1h'").replace("= 32", "= 760"));
    let state = lab.path("state");
    let mut seen = 0;
    for _ in 0..4 {
        let mut running = run(&path, &state, 2).spawn().expect("it starts");
        let ended = |running: &mut std::process::Child| running.try_wait().expect("its status").is_some();
        await_until("more epochs", || releases(&state).len() > seen || ended(&mut running));
        running.kill().expect("it can be killed");
        let _ = running.wait();
        seen = releases(&state).len();
    }
    finish(&mut run(&path, &state, 1)).succeeded();
    assert!(sums(&state) == expected_sums(&path), "each row counts once");
}

#[test]
fn incompatible_sources_are_refused() {
    let lab = Lab::new();
    let source =
        |name: &str, more: &str| format!("[[sources]]\nname = '{name}'\npath = '{name}.csv'\n{more}\n");
    let check = |sources: String, parts: &[&str]| {
        let path = lab.write("refused.toml", pipeline(&sources, "1h", "fold"));
        finish(hushflow(["plan"]).arg(&path)).failed(2, parts);
    };
    check(source("a", ""), &["write a single source as [source]"]);
    check(source("a", "") + &source("a", ""), &["named twice"]);
    check(source("a", "id = 'id'") + &source("b", ""), &["must be the same for all sources"]);
    check(source("a", "id = 'id'") + &source("b", "id = 'id'"), &["late = \"drop\""]);
    check(source("a", "") + &source("b", "idle = '-1s'"), &["expected a duration"]);
    check(
        source("a", "") + &source("b", "clock = 'end-of-input'\nlargest_jump = '1d'"),
        &["no row advances a clock here"],
    );
    let two = ["a", "b"].map(|name| {
        format!("[[sources]]\nname = '{name}'\npath = 'tcp-listen://127.0.0.1:1'\nformat = 'csv'\n")
    });
    check(two.concat(), &["a state directory has only one journal"]);
    let text = pipeline(&(source("a", "") + &source("b", "")), "1h", "fold");
    let start = text.find("[epochs]").expect("the section");
    let path = lab.write("counted.toml", format!("{}[epochs]\nrecords = 10\nhorizon = 9\n", &text[..start]));
    finish(hushflow(["plan"]).arg(&path))
        .failed(2, &["epochs with a fixed number of records need a single source"]);
}
