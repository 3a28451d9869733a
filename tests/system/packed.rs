//! Tests that files packed by gzip and zstd count like plain ones, and that damaged ones spend
//! no budget.

use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use crate::harness::{Lab, finish, hushflow, releases, run, sums, tail};
use crate::parquet::write_optional;

const REST: &str = "columns = [{ name = 'x', lower = 0, upper = 1 }]
privacy = { epsilon = 1, delta = 1e-6 }
";

/// `mean` and `covariance` read the formats and packings of pipelines: the same rows give the same
/// answer under a seed.
#[test]
fn estimators_of_files_read_every_format() {
    let lab = Lab::new();
    let number = |row: u32, step: u32| Some(f64::from(row * step % 97) / 97.0);
    let values: Vec<[Option<f64>; 2]> =
        (0..2000).map(|row| [number(row, 5).filter(|_| row % 50 != 0), number(row, 11)]).collect();
    let text = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    let table = |delimiter: &str| {
        let row = |row: &[Option<f64>; 2]| format!("{}{delimiter}{}\n", text(row[0]), text(row[1]));
        format!("age{delimiter}height\n{}", values.iter().map(row).collect::<String>())
    };
    let object = |row: &[Option<f64>; 2]| {
        let age = row[0].map_or("null".into(), |age| age.to_string());
        format!("{{\"note\": \"none\", \"height\": {}, \"age\": {age}}}\n", text(row[1]))
    };
    let objects: String = values.iter().map(object).collect();
    lab.write("plain.csv", table(","));
    lab.write("semicolons.csv", table(";"));
    lab.write("tabs.tsv", table("\t"));
    lab.write("bars", table("|"));
    lab.write("packed.csv.gz", gzip(&table(";")));
    lab.write("packed.csv.zst", zstd(&table(",")));
    lab.write("rows.ndjson", &objects);
    lab.write("rows.ndjson.zst", zstd(&objects));
    write_optional(&lab.path("rows.parquet"), &["age", "height"], &values);
    let commands = [
        ["mean", "--corruption=0.01", "--epsilon=4", "--delta=1e-6", "--scale=0.3"],
        ["covariance", "--bounds=0:1", "--rho=0.5", "--missing=centre", "--neighbours=replace-one"],
    ];
    for command in commands {
        let answer = |file: &str, columns: &[&str]| {
            let mut command = hushflow(command);
            command.args(["--seed", "1", "--json"]).args(columns).arg(lab.path(file));
            let mut answer = finish(&mut command).succeeded().json().remove(0);
            answer.as_object_mut().expect("an object").remove("seconds");
            answer
        };
        let named = ["--columns", "age,height"];
        let plain = answer("plain.csv", &[]);
        for file in [
            "semicolons.csv",
            "tabs.tsv",
            "bars",
            "packed.csv.gz",
            "packed.csv.zst",
            "rows.parquet",
            "rows.ndjson",
            "rows.ndjson.zst",
        ] {
            assert_eq!(answer(file, &named), plain, "{file}");
        }
        for file in ["semicolons.csv", "rows.parquet"] {
            assert_eq!(answer(file, &[]), plain, "{file}");
        }
        // The set of columns must not depend on a row.
        let mut unnamed = hushflow(command);
        finish(unnamed.args(["--seed", "1"]).arg(lab.path("rows.ndjson"))).failed(1, &["--columns"]);
        for (file, columns) in [("packed.csv.gz", &[][..]), ("rows.ndjson", &named)] {
            let mut piped = hushflow(command);
            let input = std::fs::File::open(lab.path(file)).expect("the file");
            let piped = finish(piped.args(["--seed", "1", "--json", "-"]).args(columns).stdin(input));
            assert_eq!(piped.succeeded().json()[0]["rows"], plain["rows"], "{file}");
        }
        let input = std::fs::File::open(lab.path("rows.parquet")).expect("the file");
        finish(hushflow(command).args(["--seed", "1", "-"]).stdin(input)).failed(1, &["name the file"]);
    }
}

pub(crate) fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).expect("memory takes every byte");
    encoder.finish().expect("memory takes every byte")
}

fn zstd(text: &str) -> Vec<u8> {
    compress_to_vec(text.as_bytes(), CompressionLevel::Fastest)
}

fn rows(numbers: std::ops::Range<u32>) -> String {
    let row = |number: u32| format!("{}\n", f64::from(number % 97) / 97.0);
    format!("x\n{}", numbers.map(row).collect::<String>())
}

fn pipeline(lab: &Lab, source: &str, horizon: u32) -> PathBuf {
    let epochs = format!("epochs = {{ records = 100, horizon = {horizon} }}");
    lab.write("pipeline.toml", format!("name = 'n'\nsource = {{ {source} }}\n{REST}{epochs}\n"))
}

/// The sums of the same rows in plain files.
fn plain_sums(lab: &Lab) -> Vec<Vec<i128>> {
    lab.write("a.csv", rows(0..1234));
    lab.write("b.csv", rows(1234..3000));
    let state = lab.path("plain");
    finish(&mut run(&pipeline(lab, "path = ['a.csv', 'b.csv']", 30), &state, 1)).succeeded();
    sums(&state)
}

fn epochs(state: &Path, arguments: &[&str]) -> Vec<u64> {
    let lines = finish(&mut tail(state, arguments)).succeeded().json();
    lines.iter().filter_map(|line| line["epoch"].as_u64()).collect()
}

#[test]
fn packed_files_count_as_plain_ones_and_damaged_ones_spend_nothing() {
    let lab = Lab::new();
    let expected = plain_sums(&lab);
    let (a, b) = (gzip(&rows(0..1234)), zstd(&rows(1234..3000)));
    let state = lab.path("of/several/folders/state");
    let pipeline = pipeline(&lab, "path = ['a.csv.gz', 'b.csv.zst']", 30);
    lab.write("a.csv.gz", &a);
    lab.write("b.csv.zst", &b[..b.len() / 2]);
    let cut = finish(&mut run(&pipeline, &state, 1));
    cut.failed(1, &["b.csv.zst", "at byte", "ends too early"]);
    assert!(!state.join("public.log").exists() || releases(&state).is_empty(), "nothing is spent");
    lab.write("b.csv.zst", &b);
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    assert_eq!(sums(&state), expected);
    assert_eq!(epochs(&state, &["--last", "2"]), [29, 30]);
    assert_eq!(epochs(&state, &["--last", "2", "--follow"]), [29, 30]);
    finish(&mut tail(&state, &["--last", "0"])).failed(2, &["--last"]);
}

#[test]
fn standard_input_is_unpacked_with_and_without_a_journal() {
    let lab = Lab::new();
    let expected = plain_sums(&lab);
    let packed = [gzip(&rows(0..1234)), gzip(&rows(1234..3000)[2..]), vec![0; 512]].concat();
    let input = lab.write("input", &packed);
    for (name, journal) in [("without", ""), ("with", ", journal = true")] {
        let source = format!("path = '-', format = 'csv'{journal}");
        let (state, pipeline) = (lab.path(name), pipeline(&lab, &source, 30));
        finish(run(&pipeline, &state, 1).stdin(std::fs::File::open(&input).expect("the input"))).succeeded();
        assert_eq!(sums(&state), expected, "{name}");
    }
    let cut = lab.write("cut", &packed[..packed.len() - 700]);
    let pipeline = pipeline(&lab, "path = '-', format = 'csv'", 30);
    let ended =
        finish(run(&pipeline, &lab.path("cut-state"), 1).stdin(std::fs::File::open(cut).expect("it")));
    ended.failed(1, &["<standard input>", "ends too early"]);
}

#[test]
fn packed_files_of_a_followed_directory_are_read_when_they_are_whole() {
    let lab = Lab::new();
    let expected = plain_sums(&lab);
    let (a, b) = (gzip(&rows(0..1234)), zstd(&rows(1234..3000)));
    std::fs::create_dir(lab.path("log")).expect("a directory");
    let source = "path = 'log/*.csv.*', format = 'csv', follow = true";
    let (state, pipeline) = (lab.path("state"), pipeline(&lab, source, 100));
    let until_idle = || {
        let mut command = run(&pipeline, &state, 1);
        command.args(["--until-idle", "500ms"]);
        finish(&mut command)
    };
    lab.write("log/a.csv.gz", &a);
    until_idle().succeeded();
    lab.write("log/b.csv.zst", &b[..b.len() - 3]);
    until_idle().failed(1, &["b.csv.zst", "still being written"]);
    lab.write("log/b.csv.zst", &b);
    until_idle().succeeded();
    let total = |sums: Vec<Vec<i128>>| {
        let columns = 0..sums[0].len();
        columns.map(|column| sums.iter().map(|epoch| epoch[column]).sum()).collect::<Vec<i128>>()
    };
    assert_eq!(total(sums(&state)), total(expected), "each row once");
}

/// Other packings are named with the command that unpacks them, in files and in pipes alike.
#[test]
fn other_packings_are_refused_with_a_way_to_unpack_them() {
    let lab = Lab::new();
    let starts: [(&str, &[u8]); 4] = [
        ("xz", b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4\x46"),
        ("bzip2", b"BZh91AY&SY\x01\x02"),
        ("lz4", b"\x04\x22\x4d\x18\x64\x40\xa7\x01"),
        ("zip", b"PK\x03\x04\x14\0\0\0"),
    ];
    for (name, start) in starts {
        let packed = lab.write("a.csv.xz", start);
        let state = lab.path(name);
        let expected = ["packed by", name, "only gzip and zstd", "| hushflow run PIPELINE"];
        let file = pipeline(&lab, "path = 'a.csv.xz'", 30);
        finish(&mut run(&file, &state, 1)).failed(1, &[&expected[..], &["a.csv.xz"]].concat());
        let pipe = pipeline(&lab, "path = '-', format = 'csv'", 30);
        let input = std::fs::File::open(&packed).expect("the input");
        let piped = finish(run(&pipe, &state, 1).stdin(input));
        piped.failed(1, &[&expected[..], &["<standard input>"]].concat());
        finish(hushflow(["init"]).arg(&packed)).failed(1, &expected);
    }
}
