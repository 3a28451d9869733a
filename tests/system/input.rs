//! User mistakes in pipeline files, data files and rows. Every mistake gives a message with its
//! position and a documented exit code, and no output contains a value of a row.

use std::path::Path;

use crate::harness::{Ended, Lab, finish, hushflow, releases, sums};
use hushflow::state::{PublicHeader, PublicReader, Store};

/// A pipeline with every section; each field has a separate line.
const EVERY_FIELD: &str = "name = 'every'
[source]
path = 'data.csv'
format = 'csv'
missing = 'skip'
malformed = 'skip'
[[columns]]
name = 'x'
lower = 0
upper = 1
[[columns]]
name = 'y'
lower = -1
upper = 1
[key]
column = 'k'
values = ['a', 'b']
[epochs]
time = 'event'
arrival = 'arrival'
start = '2020-01-01'
length = '1d'
allowed_lateness = '6h'
late = 'fold'
horizon = 10
[privacy]
epsilon = 1
delta = 1e-6
neighbours = 'replace-one'
clip_norm = 1.5
second_moment_weight = 0.5
second_moments = 'full'
[release]
method = 'jme'
strategy = 'square-root'
workload = 'prefix'
[[views]]
name = 'v'
workload = 'prefix'
estimate = 'gaussian'
covariance = 'floor'
level = 0.95
[state]
directory = 'state'
[simulation]
seed = 1
";

/// Fields that have a default.
const OPTIONAL: [&str; 18] = [
    "format",
    "missing",
    "malformed",
    "allowed_lateness",
    "late",
    "neighbours",
    "clip_norm",
    "second_moment_weight",
    "second_moments",
    "method",
    "workload",
    "estimate",
    "covariance",
    "level",
    "arrival",
    "values",
    "directory",
    "strategy",
];

/// Runs this text as a pipeline file and checks that it is refused before any state is made.
fn refused(text: &str, parts: &[&str]) {
    let lab = Lab::new();
    let pipeline = lab.write("p.toml", text);
    let ended = finish(hushflow(["run"]).arg(&pipeline).arg("--state").arg(lab.path("state")));
    assert_eq!(ended.code, Some(2), "{parts:?}: {}", ended.err);
    ended.failed(2, parts);
    assert!(!lab.path("state").exists());
}

/// All fields: the line number from 0, the dotted name of the table, and the field's name.
fn fields() -> Vec<(usize, String, &'static str)> {
    let mut table = String::new();
    let mut columns = 0;
    let mut fields = Vec::new();
    for (number, line) in EVERY_FIELD.lines().enumerate() {
        match line.split_once(" = ") {
            Some((name, _)) => fields.push((number, table.clone(), name)),
            None if line == "[[columns]]" => {
                table = format!("columns[{columns}].");
                columns += 1;
            }
            None if line == "[[views]]" => table = "views[0].".into(),
            None => table = format!("{}.", line.trim_matches(['[', ']'])),
        }
    }
    fields
}

/// The text with this line replaced or removed.
fn with_line(number: usize, line: Option<&str>) -> String {
    let lines = EVERY_FIELD.lines().enumerate();
    let lines = lines.filter_map(|(at, old)| if at == number { line } else { Some(old) });
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_field_of_the_wrong_type_is_named() {
    for (number, table, name) in fields() {
        let location = format!("p.toml:{}:", number + 1);
        let dotted = format!(" {table}{name}: found true, expected");
        refused(&with_line(number, Some(&format!("{name} = true"))), &[&location, &dotted]);
    }
}

#[test]
fn an_unknown_field_is_named() {
    for (number, table, name) in fields() {
        let line = EVERY_FIELD.lines().nth(number).unwrap();
        let location = format!("p.toml:{}:1: {table}z{name}: unknown field", number + 1);
        refused(&with_line(number, Some(&format!("z{line}"))), &[&location]);
    }
}

#[test]
fn a_missing_field_is_named() {
    for (number, _, name) in fields().into_iter().filter(|(_, _, name)| !OPTIONAL.contains(name)) {
        refused(
            &with_line(number, None),
            &["p.toml:", &format!("the field {name} is missing: add for example")],
        );
    }
}

#[test]
fn an_impossible_value_is_named() {
    let check = |name: &str, value: &str| {
        let (number, table, field) =
            fields().into_iter().find(|(_, table, field)| format!("{table}{field}") == name).unwrap();
        let text = with_line(number, Some(&format!("{field} = {value}")));
        refused(&text, &[&format!("p.toml:{}:", number + 1), &format!(" {table}{field}")]);
    };
    for name in ["columns[0].name", "columns[0].lower", "columns[0].upper"] {
        check(name, "''");
    }
    for value in ["[]", "['data.csv', '-']", "7", "''"] {
        check("source.path", value);
    }
    check("source.format", "'tsv'");
    check("source.missing", "'keep'");
    check("columns[1].upper", "-1");
    for value in ["nan", "inf", "-inf", "1e400"] {
        check("columns[1].upper", value);
    }
    check("columns[1].name", "'x'");
    check("key.column", "'x'");
    for value in ["[]", "['a', 'a']", "['']", "[1]"] {
        check("key.values", value);
    }
    check("epochs.time", "'k'");
    for value in ["'never'", "'2020-02-30'", "7"] {
        check("epochs.start", value);
    }
    for value in ["'1 month'", "'-1d'", "'0s'", "'soon'", "1"] {
        check("epochs.length", value);
    }
    check("epochs.allowed_lateness", "'-1s'");
    check("epochs.late", "'keep'");
    for value in ["0", "-1", "1.5", "99999999999999999999"] {
        check("epochs.horizon", value);
    }
    for value in ["0", "-1", "nan", "inf", "1e400"] {
        check("privacy.epsilon", value);
    }
    check("views[0].covariance", "'ceiling'");
    for value in ["0", "1", "nan"] {
        check("views[0].level", value);
    }
    for value in ["0", "1", "1.5", "-1e-9"] {
        check("privacy.delta", value);
    }
    check("privacy.neighbours", "'all'");
    for value in ["0", "-1", "inf"] {
        check("privacy.clip_norm", value);
        check("privacy.second_moment_weight", value);
    }
    check("release.strategy", "'best'");
    for value in ["'window:0'", "'exponential:1'", "'exponential:'", "'sum'"] {
        check("release.workload", value);
        check("views[0].workload", value);
    }
    check("simulation.seed", "-1");
}

#[test]
fn errors_of_the_mechanism_name_the_file_and_the_section() {
    let check = |old: &str, new: &str, parts: &[&str]| {
        assert!(EVERY_FIELD.contains(old), "{old}");
        refused(&EVERY_FIELD.replacen(old, new, 1), parts);
    };
    check(
        "horizon = 10",
        "horizon = 9223372036854775807",
        &["p.toml:25:11: release: the horizon is 9223372036854775807"],
    );
    check(
        "horizon = 10",
        "horizon = 1000000000000",
        &["p.toml:25:11: release: the horizon is 1000000000000 steps"],
    );
    check("upper = 1\n", "upper = 5e-324\n", &["p.toml:7:", "columns: column 0 is bounded by 0"]);
}

/// More moments than a frame of the log holds.
const TOO_WIDE: &str =
    "columns: a release would be 40513501 moments for each of 1 keys, and has at most 33554432";

#[test]
fn a_release_that_no_log_can_hold_is_refused_before_it_takes_memory() {
    let lab = Lab::new();
    lab.write("data.csv", "x\n0.5\n");
    let columns = |number: u32| {
        let column = |at| format!("[[columns]]\nname = 'x{at}'\nlower = 0\nupper = 1\n");
        (1..number).fold("[[columns]]\nname = 'x'\nlower = 0\nupper = 1\n".into(), |all: String, at| {
            all + &column(at)
        })
    };
    let rest = "[privacy]\nepsilon = 1\ndelta = 1e-6\n[epochs]\nrecords = 1\nhorizon = 9\n[release]\nstrategy = 'identity'\n";
    let write = |number| {
        let text = format!("name = 'n'\nsource.path = 'data.csv'\n{}{rest}", columns(number));
        lab.write("p.toml", text)
    };
    let state = lab.path("state");
    let wide = write(9000);
    finish(hushflow(["run"]).arg(&wide).arg("--state").arg(&state)).failed(2, &[TOO_WIDE, "list fewer keys"]);
    finish(hushflow(["plan", "--strategy", "identity"]).arg(&wide)).failed(2, &[TOO_WIDE]);
    // A log with such a header was forged.
    finish(hushflow(["run"]).arg(write(1)).arg("--state").arg(&state)).succeeded();
    let header = PublicReader::open(&state).expect("a log").header().clone();
    let mut parameters: serde_json::Value = serde_json::from_slice(&header.parameters).expect("parameters");
    let column = parameters["parameters"]["columns"][0].clone();
    parameters["parameters"]["columns"] = vec![column; 9000].into();
    let parameters = serde_json::to_vec(&parameters).expect("parameters");
    let forged = lab.path("forged");
    drop(Store::open(&forged, &PublicHeader { parameters, ..header }).expect("a state"));
    for command in ["tail", "verify"] {
        let ended = finish(hushflow([command]).arg(&forged));
        assert!(ended.code != Some(0) && ended.err.contains(TOO_WIDE), "{command}: {}", ended.err);
    }
}

#[test]
fn no_name_moves_the_cursor_of_a_terminal() {
    let lab = Lab::new();
    lab.write("data.csv", "\"x\u{1b}[2J\",k\n0.5,a\n");
    let text = "name = 'n'
source.path = 'data.csv'
columns = [{ name = \"x\\u001b[2J\", lower = 0, upper = 1 }]
key = { column = 'k', values = ['a', \"b\\u001b[2J\\nb\"] }
epochs = { records = 1, horizon = 2 }
privacy = { epsilon = 1, delta = 1e-6 }
release.strategy = 'identity'
";
    let state = lab.path("state");
    finish(hushflow(["run"]).arg(lab.write("p.toml", text)).arg("--state").arg(&state)).succeeded();
    let shown = finish(hushflow(["tail"]).arg(&state)).succeeded().out;
    assert_eq!(shown.lines().count(), 4, "a legend, titles, and a line for each key: {shown}");
    assert!(!shown.contains('\u{1b}') && shown.contains("b\u{fffd}[2J\u{fffd}b"), "{shown}");
}

#[test]
fn extreme_but_possible_values_never_panic() {
    let numbers = ["1e-308", "5e-324", "1e308", "1e-30", "1e30"];
    for (name, values) in [
        ("epsilon", &numbers[..]),
        ("delta", &["1e-308", "5e-324", "0.9999999999999999"][..]),
        ("clip_norm", &numbers[..]),
        ("second_moment_weight", &numbers[..]),
        ("upper", &numbers[..]),
        ("lower", &["-1e308", "-1e-308"][..]),
        ("length", &["'1us'", "'9000w'"][..]),
        ("allowed_lateness", &["'290000y'", "'15000000w'"][..]),
        ("start", &["'-009999-01-02'", "'9999-12-30'"][..]),
    ] {
        for value in values {
            let number = fields().into_iter().find(|(_, _, field)| *field == name).unwrap().0;
            let text = with_line(number, Some(&format!("{name} = {value}")));
            let lab = Lab::new();
            lab.write("data.csv", "event,arrival,k,x,y\n2020-01-01,2020-01-01,a,0.5,0.5\n");
            let ended = finish(hushflow(["run"]).arg(lab.write("p.toml", text)));
            assert!(matches!(ended.code, Some(0..=2)), "{name} = {value}: {:?} {}", ended.code, ended.err);
            assert!(
                ended.code == Some(0) || ended.err.contains("error: "),
                "{name} = {value}: {}",
                ended.err
            );
        }
    }
}

#[test]
fn files_that_are_not_pipelines_are_refused() {
    refused("", &["p.toml:1:1:", "the field name is missing"]);
    refused("name = ", &["p.toml:1:"]);
    refused("[source\npath = 'a.csv'\n", &["p.toml:1:", "unclosed table"]);
    let lab = Lab::new();
    for (name, content) in [("latin.toml", &b"name = 'caf\xe9'\n"[..]), ("nul.toml", b"name = 'a\0b'\n")] {
        finish(hushflow(["run"]).arg(lab.write(name, content))).failed(2, &[name]);
    }
    finish(hushflow(["run"]).arg(lab.path("nowhere.toml"))).failed(2, &["nowhere.toml", "can't be read"]);
    finish(&mut hushflow(["run"])).failed(2, &["<PIPELINE>"]);
    finish(&mut hushflow(["run", "p.toml", "--workers", "0"])).failed(2, &["--workers"]);
    finish(&mut hushflow(["run", "p.toml", "--process", "0"])).failed(2, &["--hosts"]);
}

/// Runs a pipeline over `name` with a column `x` and epochs of ten rows.
fn read(lab: &Lab, name: &str, content: &[u8], policy: &str) -> Ended {
    lab.write(name, content);
    let text = format!(
        "name = 'n'
source = {{ path = '{name}', missing = '{policy}', malformed = '{policy}' }}
columns = [{{ name = 'x', lower = 0, upper = 1 }}]
epochs = {{ records = 10, horizon = 3 }}
privacy = {{ epsilon = 1, delta = 1e-6 }}
release.strategy = 'square-root'
state.directory = 'state'
"
    );
    finish(hushflow(["run", "--counters", "--json"]).arg(lab.write("p.toml", text)))
}

/// Checks the numbers of rows read, skipped for a missing value and skipped as malformed, and that
/// the others are in the sums.
fn check_rows(name: &str, content: impl AsRef<[u8]>, [rows, missing, malformed]: [i128; 3]) {
    let lab = Lab::new();
    let shown = String::from_utf8_lossy(content.as_ref()).chars().take(60).collect::<String>();
    let ended = read(&lab, name, content.as_ref(), "skip").succeeded();
    let check_count = |count: i128, what: &str| {
        let line = ended.err.lines().find(|line| line.ends_with(what));
        let found = line.and_then(|line| line.split_whitespace().next()).map_or("0", |number| number);
        assert_eq!(found, count.to_string(), "{what}: {shown:?}\n{}", ended.err);
    };
    check_count(rows, "rows read");
    check_count(missing, "unusable, a value is missing");
    check_count(malformed, "unusable, malformed");
    let counted: i128 = sums(&lab.path("state")).iter().map(|epoch| epoch[0]).sum();
    assert_eq!(counted, rows - missing - malformed, "{shown:?}");
}

#[test]
fn csv_files_as_people_make_them() {
    let check = |content: &[u8], counts| check_rows("data.csv", content, counts);
    check(b"x\n0.5\n0.25\n", [2, 0, 0]);
    check(b"x\n", [0, 0, 0]);
    check(b"x", [0, 0, 0]);
    check(b"x\n0.5", [1, 0, 0]);
    check(b"\xef\xbb\xbfx\r\n0.5\r\n\r\n0.25\r\n", [2, 0, 0]);
    check(b"\xef\xbb\xbf\"x\",y\n0.5,1\n", [1, 0, 0]);
    check(b"y,x\n\"two\nlines, \"\"quoted\"\"\",0.5\n,\n", [2, 1, 0]);
    check(b"x,y\nNaN,1\ninf,1\n-infinity,1\n1e308,1\n1e309,1\nten,1\n0x1,1\n\"0,5\",1\n", [8, 0, 7]);
    check(b"x,y\n0.5\n0.5,1,2\n0.5,1\n", [3, 0, 2]);
    check(b"name,x\ncaf\xe9,0.5\n\0,0.5\na,\0\nb,0.5\0\n", [4, 0, 2]);
    check(b" x ,y\n 0.5 ,1\n", [1, 0, 0]);
}

#[test]
fn ndjson_files_as_people_make_them() {
    let check = |content: &str, counts| check_rows("data.ndjson", content, counts);
    check("{\"x\": 0.5}\n{\"x\": 0.25}", [2, 0, 0]);
    check("", [0, 0, 0]);
    check("\u{feff}{\"x\": 0.5}\r\n\r\n", [1, 0, 0]);
    check("{\"x\": null}\n{}\n{\"X\": 1}\n", [3, 3, 0]);
    check("{\"x\": 0.5, \"more\": {\"x\": [1]}}\n", [1, 0, 0]);
    check("{\"x\": 0.5, \"x\": 0.5}\n{\"x\": true}\n{\"x\": [0.5]}\n{\"x\": \"no\"}\n", [4, 0, 4]);
    check("[0.5]\n0.5\nnull\n{\"x\": 0.5\nx\n{'x': 0.5}\n{\"x\": NaN}\n{\"x\": 1e999}\n", [8, 0, 8]);
    check(&format!("{}\n{{\"x\": 0.5}}\n", "[".repeat(100_000)), [2, 0, 1]);
}

#[test]
fn rows_of_real_weather_with_missing_values_are_skipped() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/weather_nyc2013.csv");
    let csv = std::fs::read_to_string(path).unwrap();
    let pressure = csv.lines().next().unwrap().split(',').position(|name| name == "pressure").unwrap();
    let rows = csv.lines().skip(1);
    let missing = rows.clone().filter(|row| row.split(',').nth(pressure) == Some("")).count();
    assert!(missing > 1000, "the file has gaps");
    let lab = Lab::new();
    lab.write("weather.csv", &csv);
    let text = "name = 'weather'
source.path = 'weather.csv'
columns = [{ name = 'pressure', lower = 980, upper = 1040 }]
epochs = { records = 1000, horizon = 100 }
privacy = { epsilon = 1, delta = 1e-6 }
release.strategy = 'square-root'
state.directory = 'state'
";
    finish(hushflow(["run", "--quiet"]).arg(lab.write("p.toml", text))).succeeded();
    let counted: i128 = sums(&lab.path("state")).iter().map(|epoch| epoch[0]).sum();
    assert_eq!(counted as usize, rows.count() - missing);
}

#[test]
fn unreadable_data_end_the_run_with_their_position() {
    let check = |name: &str, content: &[u8], parts: &[&str]| {
        let lab = Lab::new();
        read(&lab, name, content, "reject").failed(1, parts);
    };
    check("data.csv", b"", &["data.csv: the file is empty"]);
    check("data.csv", b"y,z\n1,2\n", &["data.csv:1: none of the 2 columns", "\"x\""]);
    check("data.csv", b"x,x\n1,2\n", &["data.csv:1:", "more than one column \"x\""]);
    check("data.csv", b"y,x\n\"\n\",1\n1,\n", &["data.csv:4: column \"x\": the value is missing"]);
    check("data.csv", b"x\nten\n", &["data.csv:2: column \"x\": expected a number"]);
    check("data.csv", b"x,y\n1\n", &["data.csv:2: the row does not have as many fields"]);
    check("data.ndjson", b"{\"x\": 1}\n\n[1]\n", &["data.ndjson:3: the line is not a JSON object"]);
    let giant = [&b"x\n0.5\n\""[..], &vec![b'7'; 3 << 20]].concat();
    check("data.csv", &giant, &["data.csv:3: the record that begins here is longer than"]);
    check(
        "data.ndjson",
        &vec![b'['; 3 << 20],
        &["data.ndjson:1: the record that begins here is longer than"],
    );
    let lab = Lab::new();
    let ended = read(&lab, "data.csv", b"x\n", "skip").succeeded();
    assert!(ended.err.contains("The source has no row"), "{}", ended.err);
    std::fs::remove_file(lab.path("data.csv")).unwrap();
    finish(hushflow(["run"]).arg(lab.path("p.toml"))).failed(1, &["data.csv", "can't be read"]);
}

/// Numbers and texts that occur nowhere else.
const CANARIES: [&str; 4] = ["0.73519846", "73519846", "xq-canary-zw", "8.8125e77"];

fn check_canaries(name: &str, content: &str, policy: &str) {
    let lab = Lab::new();
    let ended = read(&lab, name, content.as_bytes(), policy);
    assert!(matches!(ended.code, Some(0 | 1)), "{}", ended.err);
    let tailed = finish(hushflow(["tail", "--json"]).arg(lab.path("state")));
    let log = std::fs::read(lab.path("state/public.log")).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    for canary in CANARIES {
        for text in [&ended.out, &ended.err, &tailed.out, &tailed.err, &*log] {
            assert!(!text.contains(canary), "{canary} of {name} is printed: {text}");
        }
    }
}

#[test]
fn messages_never_contain_values_of_rows() {
    let [decimal, integer, text, large] = CANARIES;
    for policy in ["skip", "reject"] {
        for bad in [
            format!("x,y\n{text},1\n"),
            format!("x,y\n{decimal}{text},1\n"),
            format!("x,y\n{large},{decimal}\n{integer}\n"),
            format!("x,y\n{decimal},{text},{integer}\n"),
            format!("x,y\n\"{text}\n{decimal}\",\"{integer}"),
            format!("x,y\nNaN,{text}\n,{decimal}\n"),
            // No header: the first line is a row of data.
            format!("{decimal},{text}\n{integer},{large}\n"),
            format!("{text},{text}\n{text},{large}\n"),
        ] {
            check_canaries("data.csv", &bad, policy);
        }
        for bad in [
            format!("{{\"x\": \"{text}\"}}\n"),
            format!("{{\"x\": {decimal}, \"x\": {integer}}}\n"),
            format!("{{\"x\": {decimal}\n"),
            format!("[{large}]\n\"{text}\"\n{integer}\n"),
            format!("{{\"{text}\": {decimal}, \"x\": [{integer}]}}\n"),
        ] {
            check_canaries("data.ndjson", &bad, policy);
        }
    }
}

/// The header may be a row of data by mistake, so it must not be printed.
#[test]
fn a_missing_column_is_reported_without_the_header() {
    for (content, secrets) in [("X1,y\n1,2\n", ["X1"; 2]), ("7.25,secret,z\n1,2,3\n", ["7.25", "secret"])] {
        let lab = Lab::new();
        let ended = read(&lab, "data.csv", content.as_bytes(), "skip");
        assert_eq!((ended.code, releases(&lab.path("state")).len()), (Some(1), 0), "{}", ended.err);
        assert!(ended.err.contains("columns that line 1 names"), "{}", ended.err);
        assert!(secrets.iter().all(|secret| !ended.err.contains(secret)), "{}", ended.err);
    }
}
