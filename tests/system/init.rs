//! `hushflow init` by flags and on a terminal, and the commands of `docs/first-hour.md`.

mod entities;

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
}

/// Fields of inner objects are columns, keys and units, by dotted names.
#[test]
fn nested_objects_are_described_and_counted() {
    let lab = Lab::new();
    let row = |row: u32| {
        let (user, country, day) = (row % 60, ["NO", "SE"][row as usize % 2], 1 + row / 50);
        format!(
            "{{\"user\": {{\"id\": \"u{user}\", \"geo\": {{\"country\": \"{country}\"}}}}, \"at\": \"2024-01-{day:02}\", \
             \"page\": {{\"ms\": {}}}}}\n",
            row % 90
        )
    };
    lab.write("clicks.ndjson", (0..500).map(row).collect::<String>());
    let init = |arguments: &[&str]| {
        finish(hushflow(["init", "clicks.ndjson"]).args(arguments).current_dir(lab.path(".")))
    };
    let proposed = ["--columns page.ms:0:90", "--key user.geo.country=NO,SE", "--unit user.id"];
    init(&["--yes"]).failed(2, &proposed);
    // The name of an object is not that of the arrival in it.
    let row = |row: u32| {
        let minute = format!("2024-01-01T{:02}:{:02}", row / 60, row % 60);
        format!(
            "{{\"record\": {{\"at\": \"{minute}:00Z\", \"received\": \"{minute}:30Z\"}}, \"ms\": {}}}\n",
            row * 7 % 90
        )
    };
    lab.write("records.ndjson", (0..300).map(row).collect::<String>());
    let mut proposing = hushflow(["init", "records.ndjson", "--yes"]);
    finish(proposing.current_dir(lab.path(".")))
        .failed(2, &["--time record.at", "--arrival record.received"]);
    let columns = ["--columns", "page.ms:0:90", "--key", "user.geo.country=NO,SE", "--unit", "user.id"];
    let epochs = ["--time", "at", "--start", "2024-01-01", "--epoch", "1d", "--horizon", "10"];
    init(&[&columns[..], &epochs, &["--epsilon", "1", "--delta", "1e-6"]].concat()).succeeded();
    let checked = finish(hushflow(["check", "--json"]).arg(lab.path("clicks.toml"))).succeeded().json();
    assert_eq!(checked[0]["outcomes"]["records"], 500);
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
    .failed(2, &["--start", "--epoch", "--horizon"]);
    init(&lab, &["--columns", "delay:0:9", "--epsilon", "1", "--delta", "1e-6"])
        .failed(2, &["has no column \"delay\""]);
    init(&lab, &["--columns", "carrier:0:9", "--epsilon", "1", "--delta", "1e-6"])
        .failed(2, &["are not numbers"]);
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

/// Spreadsheets write a byte order mark: it is not part of the first name, quoted or not.
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
        (&["32", "--epoch", "1d", "--output", "a.toml"][..], "length = \"1d\""),
        (&["5", "--epoch", "1 week", "--output", "b.toml"], "length = \"1 week\""),
        (&["1", "--epoch", "month", "--output", "c.toml"], "length = \"month\""),
        (
            &[&["32", "--epoch", "1d", "--output", "d.toml"][..], &zone].concat(),
            "timezone = \"America/New_York\"",
        ),
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

/// Answers `init` on a pseudo-terminal. `script` of util-linux makes one.
fn answered(lab: &Lab, arguments: &str, answers: &str) -> Ended {
    let line = format!("{} init {arguments}", env!("CARGO_BIN_EXE_hushflow"));
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).current_dir(lab.path("."));
    script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = script.spawn().expect("script of util-linux starts");
    child.stdin.take().expect("its input").write_all(answers.as_bytes()).expect("answers");
    wait(child)
}

#[test]
fn questions_on_a_terminal_have_defaults() {
    let lab = lab();
    // Two columns of four; a wrong answer is asked for again.
    let answers = "-60:240\n9:0\n-90:270\n-\n-\norigin\nEWR,JFK,LGA\nevent_time\nrecorded_at\nUTC\n1d\n2013-01-01T05:00:00Z\n32\nrecord\n1\n1e-6\n\n";
    let arguments = "examples/data/flights_jan2013.csv --output asked.toml";
    let ended = answered(&lab, arguments, answers).succeeded();
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
    let time = ["--time", "event", "--arrival", "arrival", "--start", "2020-01-01", "--epoch"];
    let time = [&time[..], &["1 week", "--horizon", "9"]].concat();
    let others = ["--columns", "a:0:9,b:0:9", "--key", "key=Oslo", "--epsilon", "1", "--delta", "1e-6"];
    init(&[&time[..], &others].concat()).succeeded();
    let checked = finish(hushflow(["check", "--json"]).arg(lab.path("rows.toml"))).succeeded().json();
    assert_eq!((&checked[0]["rows"], &checked[0]["outcomes"]["records"]), (&56.into(), &56.into()));
}

/// Files as spreadsheets, sensors and servers write them: each is counted whole, with options only.
#[test]
fn delimiters_times_and_directories_are_found() {
    let lab = Lab::new();
    let rows = |header: &str, row: &dyn Fn(u32) -> String| {
        (0..60).map(row).fold(format!("{header}\n"), |text, row| text + &row + "\n")
    };
    let day = |row: u32| 1 + row / 2 % 30;
    lab.write(
        "meters.csv",
        format!(
            "\u{feff}{}",
            rows("\"Zeit\";\"kWh, net\"\r", &|row| format!("{:02}.01.2020 10:00;1.5\r", day(row)))
        ),
    );
    lab.write("us.tsv", rows("when\tx", &|row| format!("1/{}/2020 1:30 PM\t1", day(row))));
    lab.write("bars.txt", rows("ts|x", &|row| format!("{}|1", 1_577_836_800 + 86_400 * day(row))));
    let object =
        |row| format!("{{\"at\": {}, \"x\": 1}}", 1_577_836_800_000_u64 + 86_400_000 * u64::from(day(row)));
    lab.write("server.log", rows("", &object));
    std::fs::create_dir(lab.path("months")).expect("a directory");
    for (name, half) in [("b.csv", 1), ("a.csv", 0)] {
        lab.write(
            &format!("months/{name}"),
            rows("date;x", &|row| format!("2020-01-{:02};1", day(row + 30 * half))),
        );
    }
    for (files, columns, time, rows, lines) in [
        (
            "meters.csv",
            "kWh, net:0:3",
            "Zeit",
            60,
            &["delimiter = \";\"", "time_format = \"%d.%m.%Y %H:%M\""][..],
        ),
        ("us.tsv", "x:0:3", "when", 60, &["delimiter = \"\\t\"", "time_format = \"%m/%d/%Y %I:%M %p\""]),
        ("bars.txt", "x:0:3", "ts", 60, &["delimiter = \"|\"", "time_format = \"seconds\""]),
        ("server.log", "x:0:3", "at", 60, &["format = \"ndjson\"", "time_format = \"milliseconds\""]),
        ("months", "x:0:3", "date", 120, &["path = [\"months/a.csv\", \"months/b.csv\"]"]),
    ] {
        let epochs = ["--start", "2020-01-01", "--epoch", "1d", "--horizon", "31"];
        let flags = [&["--columns", columns, "--time", time][..], &epochs].concat();
        let mut command =
            hushflow(["init", files, "--output", &format!("{files}.toml"), "--epsilon", "8", "--delta"]);
        finish(command.arg("1e-6").args(flags).current_dir(lab.path("."))).succeeded();
        let pipeline = lab.path(&format!("{files}.toml"));
        let text = std::fs::read_to_string(&pipeline).expect("the file");
        lines.iter().for_each(|line| assert!(text.contains(line), "{line}: {text}"));
        let checked = finish(hushflow(["check", "--json"]).arg(&pipeline)).succeeded().json();
        assert_eq!(checked[0]["outcomes"]["records"], rows, "{files}");
    }
}

#[test]
fn decimal_commas_and_swapped_days_are_refused_with_a_remedy() {
    let lab = Lab::new();
    lab.write("commas.csv", "day;x\n03.04.2020;1,5\n03.04.2020;2,5\n");
    lab.write("swapped.csv", "day,x\n03/04/2020,1\n05/04/2020,2\n");
    lab.write("list.json", "[{\"x\": 1}]\n");
    let init = |arguments: &[&str]| {
        let mut command = hushflow(["init"]);
        finish(command.args(arguments).args(["--epsilon", "1", "--delta", "1e-6"]).current_dir(lab.path(".")))
    };
    init(&["commas.csv", "--columns", "x:0:9"]).failed(2, &["decimal commas", "write points"]);
    // A column of such numbers does not name people, though its texts repeat.
    let price = |row: u32| format!("K{};{},45;{}\n", row % 30, row % 50, row % 8);
    lab.write("prices.csv", format!("who;price;x\n{}", (0..300).map(price).collect::<String>()));
    let proposed = init(&["prices.csv"]);
    let remark = ["--columns x:0:7", "FILE > NEW does, if no comma separates fields or thousands: price."];
    assert!(!proposed.err.contains("price might"), "{}", proposed.err);
    proposed.failed(2, &remark);
    lab.write("empty.csv", "day,x\n");
    init(&["empty.csv", "--columns", "x:0:9"]).failed(2, &["columns and no row"]);
    let epochs = ["--start", "2020-01-01", "--epoch", "1d", "--horizon", "366"];
    let time = [&["--columns", "x:0:9", "--time", "day"][..], &epochs].concat();
    let swapped = |more: &[&str]| init(&[&["swapped.csv"], &time[..], more].concat());
    swapped(&[]).failed(2, &["may be swapped", "--time-format '%d/%m/%Y'", "--time-format '%m/%d/%Y'"]);
    swapped(&["--time-format", "%m/%d/%Y"]).succeeded();
    init(&["list.json"]).failed(1, &["one JSON list", "jq -c"]);
}

/// Kinds of measurement are keys with bounds of their own; rows that lack values count in part.
/// Mistyped names have suggestions, and a file that is not text is refused as such.
#[test]
fn mistakes_of_names_and_files_are_explained() {
    let lab = lab();
    lab.write("binary", [b"words\x03".repeat(9), vec![0, 7, 200, 255, b'\n', 1]].concat());
    lab.write(
        "flags.ndjson",
        "{\"x\": 1.5, \"ok\": true, \"who\": \"a\"}\n{\"x\": 2.5, \"ok\": false, \"who\": \"b\"}\n".repeat(9),
    );
    let proposed = finish(hushflow(["init", "flags.ndjson"]).current_dir(lab.path(".")));
    assert!(!proposed.err.contains("ok="), "{}", proposed.err);
    let binary = finish(hushflow(["init", "binary"]).current_dir(lab.path(".")));
    binary.failed(1, &["binary: the file is not text"]);
    let flags = |from: &str, to: &str| FLAGS.map(|flag| flag.replace(from, to));
    let refused = |flags: [String; FLAGS.len()], expected: &str| {
        init(&lab, &flags.each_ref().map(String::as_str)).failed(2, &[expected]);
    };
    refused(flags("dep_delay:", "dep_dely:"), "; did you mean \"dep_delay\"?");
    init(&lab, &[&FLAGS[..], &["--time-format", "%d.%m.%Y"]].concat())
        .failed(2, &["do not fit --time-format: expected a time of the pattern \"%d.%m.%Y\""]);
    init(&lab, &FLAGS).succeeded();
    let text = std::fs::read_to_string(lab.path("flights_jan2013.toml")).expect("the file");
    for (from, to, expected) in [
        ("name = \"dep_delay\"", "name = \"dep_deley\"", "; did you mean \"dep_delay\"?"),
        ("[release]\n", "[release]\nmethod = \"jmee\"\n", "; did you mean \"jme\"?"),
        ("time = \"event_time\"", "time = \"event_tme\"", "; did you mean \"event_time\"?"),
    ] {
        assert!(text.contains(from), "{text}");
        let file = lab.write("mistyped.toml", text.replace(from, to));
        let ended = finish(hushflow(["check"]).arg(file));
        assert_ne!(ended.code, Some(0), "{to}");
        assert!(ended.err.contains(expected) || ended.out.contains(expected), "{}{}", ended.out, ended.err);
    }
}

#[test]
fn keys_have_their_own_bounds_and_missing_values_are_detected() {
    let lab = Lab::new();
    let row = |row: u32| match row % 2 {
        0 => format!("sodium,{},A\n", 130 + row % 20),
        _ => format!("potassium,{},B\n", 3 + row % 3),
    };
    lab.write("labs.csv", format!("test,value,site\n{}", (0..400).map(row).collect::<String>()));
    let init = |arguments: &[&str]| finish(hushflow(["init"]).args(arguments).current_dir(lab.path(".")));
    init(&["labs.csv", "--yes"]).failed(2, &["--key test=potassium,sodium", "--key-bounds potassium=value:"]);
    let budget = ["--epsilon", "1", "--delta", "1e-6"];
    let key =
        ["--columns", "value:0:200", "--key", "test=sodium,potassium", "--key-bounds", "potassium=value:2:8"];
    init(&[&["labs.csv"], &key[..], &budget].concat()).succeeded();
    let without = [&["labs.csv", "--output", "without.toml"], &key[..4], &budget].concat();
    let said = init(&without).succeeded().err;
    assert!(said.contains("PRIVATE: --key-bounds potassium=value:3:5\n"), "{said}");
    let text = std::fs::read_to_string(lab.path("labs.toml")).expect("the file");
    assert!(text.contains("[columns.bounds]") && text.contains("\"potassium\" = [2, 8]"), "{text}");
    finish(hushflow(["check"]).arg(lab.path("labs.toml"))).succeeded();
    let answer = |row: u32| if row.is_multiple_of(3) { "NA".into() } else { row.to_string() };
    let rows: String = (0..600).map(|row| format!("{},{}\n", row % 90, answer(row))).collect();
    lab.write("survey.csv", format!("age,income\n{rows}"));
    init(&["survey.csv", "--yes"]).failed(2, &["--missing by-column", "--columns income:"]);
    let columns = ["--columns", "age:0:120,income:0:1000", "--missing", "by-column"];
    let made = init(&[&["survey.csv"], &columns[..], &budget].concat()).succeeded();
    assert!(made.err.contains("--missing-share income=0.33"), "{}", made.err);
    assert!(made.err.contains("income, 33 % missing"), "{}", made.err);
    // Rows that lack every value don't count, nor do those of other keys. A mean of two rows has
    // the values of either of them: 9/16 of the rows lack b, and an eighth of the means.
    let row = |row: u32| match row % 10 {
        8 => "P0,other,5,5\n".into(),
        9 => "P1,A,,\n".into(),
        number => format!("P{},A,5,{}\n", row / 2, if row % 20 < 2 || number % 2 == 1 { "" } else { "7" }),
    };
    lab.write("shares.csv", format!("person,site,a,b\n{}", (0..2000).map(row).collect::<String>()));
    let columns =
        ["--columns", "a:0:9,b:0:9", "--key", "site=A", "--missing", "by-column", "--epoch", "2000"];
    let made = |name: &str, unit: &[&str]| {
        let output = format!("{name}.toml");
        let flags =
            [&["shares.csv", "--output", &output, "--horizon", "1"], &columns[..], unit, &budget].concat();
        init(&flags).succeeded().err
    };
    let said = made("rows", &[]);
    assert!(said.contains("1,600 of 2,000 rows would count"), "{said}");
    assert!(said.contains("--missing-share b=0.56") && !said.contains("--missing-share a"), "{said}");
    let said = made("means", &["--unit", "person", "--several", "average"]);
    assert!(said.contains("as 800 means") && said.contains("--missing-share b=0.12"), "{said}");
}

/// A run whose every line would show noise alone is announced by `init` and by `check`.
#[test]
fn lines_without_an_estimate_are_announced() {
    let lab = Lab::new();
    let rows: String = (0..300).map(|row| format!("{},{}\n", row % 3, row % 50)).collect();
    lab.write("few.csv", format!("site,x\n{rows}"));
    let said = |name: &str, epsilon: &str| {
        let output = format!("{name}.toml");
        let flags = ["few.csv", "--columns", "x:0:50", "--key", "site=0,1,2", "--delta", "1e-6", "--epsilon"];
        let mut command = hushflow(["init"]);
        command.args(flags).args([epsilon, "--output", &output]).current_dir(lab.path("."));
        let made = finish(&mut command).succeeded().err;
        let checked = finish(hushflow(["check"]).arg(lab.path(&output))).succeeded().out;
        let warning = made.lines().find_map(|line| line.strip_prefix("warning: ")).map(String::from);
        if let Some(warning) = &warning {
            assert!(checked.contains(&format!("note: {warning}")), "{checked}");
        }
        warning.unwrap_or_default()
    };
    let warning = said("none", "0.1");
    assert!(
        warning.starts_with("every line would say too-few-records: the best one has about 100 records"),
        "{warning}"
    );
    // With a fixed seed.
    let text = std::fs::read_to_string(lab.path("none.toml")).expect("the file");
    let seeded = lab.write("seeded.toml", text + "\n[simulation]\nseed = 3\n");
    let lines = finish(hushflow(["run", "--json"]).arg(seeded)).succeeded().json();
    assert!(lines.len() == 30 && lines.iter().all(|line| line["quality"] == "too-few-records"));
    assert!(said("noise", "2").starts_with("every line would say noise-dominated"));
    assert_eq!(said("good", "30"), "");
}
