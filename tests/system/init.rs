//! `hushflow init` by flags and on a terminal, and the commands of `docs/first-hour.md`.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{Ended, Lab, finish, hushflow, wait};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

const FLAGS: [&str; 18] = [
    "--columns",
    "dep_delay:-60:240,distance:0:5000",
    "--key",
    "origin=EWR,JFK,LGA",
    "--time",
    "event_time",
    "--arrival",
    "recorded_at",
    "--start",
    "2013-01-01T05:00:00Z",
    "--epoch",
    "1d",
    "--horizon",
    "32",
    "--epsilon",
    "1",
    "--delta",
    "1e-6",
];

/// A lab with the examples, in which commands run.
fn lab() -> Lab {
    let lab = Lab::new();
    std::os::unix::fs::symlink(Path::new(ROOT).join("examples"), lab.path("examples")).expect("a link");
    lab
}

fn init(lab: &Lab, arguments: &[&str]) -> Ended {
    finish(hushflow(["init", "examples/data/flights_jan2013.csv"]).args(arguments).current_dir(lab.path(".")))
}

#[test]
fn flags_make_a_pipeline_that_check_and_run_accept() {
    let lab = lab();
    let made = init(&lab, &FLAGS).succeeded();
    assert!(
        made.err.contains("dep_delay") && made.err.contains("hushflow check flights_jan2013.toml"),
        "{}",
        made.err
    );
    let pipeline = lab.path("flights_jan2013.toml");
    finish(hushflow(["check"]).arg(&pipeline)).succeeded();
    let ended = finish(hushflow(["run", "--json"]).arg(&pipeline)).succeeded();
    assert_eq!(ended.json().len(), 96);
    let written = std::fs::read_to_string(&pipeline).expect("the file");
    init(&lab, &FLAGS).failed(2, &["exists, and init never overwrites a file"]);
    assert_eq!(std::fs::read_to_string(&pipeline).expect("the file"), written);
    let entities = [&FLAGS[..], &["--unit", "tailnum", "--output", "aircraft.toml"]].concat();
    init(&lab, &entities).succeeded();
    finish(hushflow(["check"]).arg(lab.path("aircraft.toml"))).succeeded();
}

#[test]
fn no_private_value_is_used_without_consent() {
    let lab = lab();
    for flags in [&["--yes"][..], &[]] {
        init(&lab, flags).failed(
            2,
            &[
                "--columns, --epsilon, --delta are missing",
                "takes no bounds, keys or start from the data",
                "PRIVATE",
                "--columns dep_delay:",
            ],
        );
    }
    init(
        &lab,
        &["--yes", "--columns", "dep_delay:0:9", "--epsilon", "1", "--delta", "1e-6", "--time", "event_time"],
    )
    .failed(2, &["--start", "--horizon"]);
    init(&lab, &["--columns", "delay:0:9", "--epsilon", "1", "--delta", "1e-6"])
        .failed(2, &["has no column \"delay\""]);
    init(&lab, &["--columns", "carrier:0:9", "--epsilon", "1", "--delta", "1e-6"])
        .failed(2, &["are no numbers"]);
    init(&lab, &["--columns", "dep_delay:9:0"]).failed(2, &["the smaller first"]);
    assert!(!lab.path("flights_jan2013.toml").exists());
}

#[test]
fn other_formats_and_streams_without_times_are_described() {
    let lab = Lab::new();
    let rows = |from: u32| {
        (from..from + 40).map(|x| format!("{{\"x\": {x}, \"name\": \"a\\\"b\"}}\n")).collect::<String>()
    };
    lab.write("a.ndjson", rows(0));
    lab.write("b.ndjson", rows(40));
    let mut command = hushflow([
        "init",
        "a.ndjson",
        "b.ndjson",
        "--columns",
        "x:0:100",
        "--epsilon",
        "1",
        "--delta",
        "1e-6",
    ]);
    finish(command.current_dir(lab.path("."))).succeeded();
    let checked = finish(hushflow(["check", "--json"]).arg(lab.path("a.toml"))).succeeded().json();
    assert_eq!((&checked[0]["rows"], &checked[0]["epochs_published"]), (&80.into(), &10.into()));
}

/// Spreadsheets write a byte order mark: it is no part of the first name, quoted or not.
#[test]
fn a_byte_order_mark_is_no_part_of_a_name() {
    let lab = Lab::new();
    for (name, header) in [("plain", "x,y"), ("quoted", "\"x\",y")] {
        let rows: String = (0..200).map(|x| format!("{x},1\n")).collect();
        let (file, pipeline) = (format!("{name}.csv"), lab.path(&format!("{name}.toml")));
        lab.write(&file, format!("\u{feff}{header}\n{rows}"));
        let mut command =
            hushflow(["init", &file, "--columns", "x:0:200", "--epsilon", "1", "--delta", "1e-6"]);
        finish(command.current_dir(lab.path("."))).succeeded();
        let checked = finish(hushflow(["check", "--json"]).arg(&pipeline)).succeeded().json();
        assert_eq!(checked[0]["rows"], 200);
        let estimate =
            ["--columns", "x", "--scale", "60", "--corruption", "0", "--epsilon", "4", "--delta", "1e-6"];
        let mut command = hushflow(["mean", &file]);
        finish(command.args(estimate).current_dir(lab.path("."))).succeeded();
    }
}

#[test]
fn lengths_zones_and_names_with_commas_make_valid_pipelines() {
    let lab = lab();
    let start = ["--time", "event_time", "--start", "2013-01-01", "--horizon"];
    let budget = ["--epsilon", "1", "--delta", "1e-6"];
    let columns = ["--columns", "dep_delay:-60:240"];
    let zone = ["--timezone", "America/New_York"];
    for (flags, line) in [
        (&["32", "--output", "a.toml"][..], "length = \"1d\""),
        (&["5", "--output", "b.toml"], "length = \"1 week\""),
        (&["1", "--epoch", "month", "--output", "c.toml"], "length = \"month\""),
        (&[&["32", "--output", "d.toml"][..], &zone].concat(), "timezone = \"America/New_York\""),
    ] {
        init(&lab, &[&columns[..], &start, flags, &budget].concat()).succeeded();
        let file = lab.path(flags.iter().find(|flag| flag.ends_with(".toml")).expect("a file"));
        let text = std::fs::read_to_string(&file).expect("the file");
        assert!(text.contains(line), "{text}");
        finish(hushflow(["check"]).arg(&file)).succeeded();
    }
    // The file has times, so epochs of rows must be asked for.
    init(&lab, &[&columns[..], &budget].concat()).failed(2, &["--time event_time", "--start", "PRIVATE"]);
    lab.write("c.csv", "\"a, b\",wind speed,city\n1,2,\"New York, NY\"\n3,4,Oslo\n");
    let mut command = hushflow([
        "init",
        "c.csv",
        "--columns",
        "a, b:0:9,wind speed:0:60",
        "--key",
        "city=\"New York, NY\",Oslo",
        "--output",
        "e.toml",
    ]);
    finish(command.args(budget).current_dir(lab.path("."))).succeeded();
    let checked = finish(hushflow(["check", "--json"]).arg(lab.path("e.toml")));
    assert_eq!(checked.json()[0]["outcomes"]["records"], 2);
}

#[test]
fn the_workload_of_the_release_is_the_default_view_everywhere() {
    let lab = lab();
    init(&lab, &FLAGS).succeeded();
    let text = std::fs::read_to_string(lab.path("flights_jan2013.toml")).expect("the file");
    lab.write("w.toml", text.replace("\"prefix\"", "\"window-mean:3\""));
    let lines = |ended: Ended| {
        let mut lines = ended.succeeded().json();
        lines.iter_mut().for_each(|line| drop(line.as_object_mut().expect("an object").remove("view")));
        lines
    };
    let ran = lines(finish(hushflow(["run", "--json"]).arg(lab.path("w.toml"))));
    let tailed = lines(finish(hushflow(["tail", "--json"]).arg(lab.path("flights_jan2013-state"))));
    assert!(ran.len() == 96 && ran == tailed);
    assert!(ran.iter().all(|line| line["workload"] == "window-mean:3"));
    let mut plan = hushflow(["plan", "--json", "--records-per-epoch", "280", "--strategy", "identity"]);
    let planned = finish(plan.arg(lab.path("w.toml"))).succeeded().json();
    assert_eq!(planned[0]["workload"], "window-mean:3");
    assert_eq!(planned[0]["of_file"]["columns"].as_array().expect("columns").len(), 2);
}

/// Answers on a pseudo-terminal. `script` of util-linux makes one.
#[test]
fn questions_on_a_terminal_have_defaults() {
    let lab = lab();
    let binary = env!("CARGO_BIN_EXE_hushflow");
    let line = format!("{binary} init examples/data/flights_jan2013.csv --output asked.toml");
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).current_dir(lab.path("."));
    script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = script.spawn().expect("script of util-linux starts");
    // Two columns of four; a wrong answer is asked for again.
    let answers = "-60:240\n9:0\n-90:270\n-\n-\norigin\nEWR,JFK,LGA\nevent_time\nrecorded_at\nUTC\n1d\n2013-01-01T05:00:00Z\n32\nrecord\n1\n1e-6\n\n";
    child.stdin.take().expect("its input").write_all(answers.as_bytes()).expect("answers");
    let ended = wait(child).succeeded();
    for part in ["PUBLISHED", "in this file", "the smaller first", "asked.toml is written"] {
        assert!(ended.out.contains(part), "{part}: {}", ended.out);
    }
    let text = std::fs::read_to_string(lab.path("asked.toml")).expect("the file");
    assert!(
        text.contains("upper = 270") && !text.contains("air_time") && text.contains("horizon = 32"),
        "{text}"
    );
    finish(hushflow(["check"]).arg(lab.path("asked.toml"))).succeeded();
}

#[test]
fn the_first_hour_runs_as_printed() {
    let lab = lab();
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/first-hour.md")).expect("the page");
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let commands: String = blocks.map(|(block, _)| block.replace("\\\n", " ")).collect();
    let mut count = 0;
    for line in commands.lines().filter(|line| line.starts_with("hushflow ")) {
        let words = line.split('#').next().unwrap_or_default().split_whitespace().skip(1);
        finish(hushflow(words).current_dir(lab.path("."))).succeeded();
        count += 1;
    }
    assert!(count >= 5, "the page has its commands");
}

#[test]
fn parquet_files_make_a_pipeline_that_check_accepts() {
    let lab = Lab::new();
    let times: Vec<String> =
        (0..56).map(|day| format!("2020-{:02}-{:02}T00:00:00Z", 1 + day / 28, 1 + day % 28)).collect();
    let row = |time| vec![time, time, "Oslo", "1", "2", "3", "4", "5"];
    let rows: Vec<Vec<&str>> = times.iter().map(|time| row(time.as_str())).collect();
    crate::parquet::write(&lab.path("rows.parquet"), &rows, 9);
    let init = |flags: &[&str]| {
        finish(hushflow(["init", "rows.parquet", "--yes"]).args(flags).current_dir(lab.path(".")))
    };
    init(&[]).failed(2, &["--time event", "--arrival arrival", "--columns a:"]);
    let time = ["--time", "event", "--arrival", "arrival", "--start", "2020-01-01", "--horizon", "9"];
    let others = ["--columns", "a:0:9,b:0:9", "--key", "key=Oslo", "--epsilon", "1", "--delta", "1e-6"];
    init(&[&time[..], &others].concat()).succeeded();
    let checked = finish(hushflow(["check", "--json"]).arg(lab.path("rows.toml"))).succeeded().json();
    assert_eq!((&checked[0]["rows"], &checked[0]["outcomes"]["records"]), (&56.into(), &56.into()));
}
