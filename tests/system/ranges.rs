//! Large files of text, packed text and Parquet that the workers of all processes read in parallel.
//! The exact sums and the releases equal those of one reader, also if processes are killed.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::Child;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::harness::{
    Lab, Stream, await_until, expected_sums, finish, releases, run, run_as_two, sums, wait,
};
use crate::packed::gzip;
use crate::parquet;

/// Files with quoted line ends, and one with line ends as on Windows. Returns their paths.
fn write_files(lab: &Lab, stream: &Stream) -> String {
    let text = stream.csv();
    let mut lines = text.lines();
    let header = format!("note,{}", lines.next().expect("a header"));
    let mut files = vec![header.clone(), header.clone(), header.clone()];
    for (row, line) in lines.enumerate() {
        let file = match row as u64 {
            row if row < stream.rows / 3 => 0,
            row if row < stream.rows / 2 => 1,
            _ => 2,
        };
        let note = ["\"two\nlines\"", "5\" wide", "\"a \"\"b\"\",\n2020,k1,1,2\n\n\"", "", "plain"][row % 5];
        let _ = write!(files[file], "\n{note},{line}");
    }
    let files = files.into_iter().enumerate().map(|(number, text)| {
        let text = if number == 1 { text.replace('\n', "\r\n") } else { text };
        lab.write(&format!("data{number}.csv"), text).display().to_string()
    });
    format!("{:?}", files.collect::<Vec<_>>())
}

fn run_two(pipeline: &Path, second: &Path, state: &Path, workers: usize) {
    let [mut first, mut other] = run_as_two(pipeline, state, workers);
    if second != pipeline {
        // The processes have the same hosts, and each its own pipeline file.
        let arguments: Vec<_> = other
            .get_args()
            .map(|argument| match Path::new(argument) {
                path if path == pipeline => second.as_os_str().to_owned(),
                _ => argument.to_owned(),
            })
            .collect();
        other = crate::harness::hushflow(arguments);
    }
    let other = other.spawn().expect("the second process starts");
    finish(&mut first).succeeded();
    wait(other).succeeded();
}

#[test]
fn files_are_read_by_all_as_by_one() {
    let (lab, stream) = (Lab::new(), Stream { rows: 45_000, epochs: 45 });
    let paths = write_files(&lab, &stream);
    let text = stream.pipeline("data.csv", "[simulation]\nseed = 7\n").replace("'data.csv'", &paths);
    let text = text.replace("[source]\n", "[source]\nlargest_jump = '1h'\n");
    let pipeline = lab.write("pipeline.toml", text);
    let one = lab.path("one");
    finish(&mut run(&pipeline, &one, 1)).succeeded();
    let (expected, released) = (sums(&one), releases(&one));
    assert!(expected.len() == 45 && expected.iter().all(|epoch| epoch[0] > 0), "a stream worth summing");
    for workers in [2, 3] {
        let state = lab.path(&format!("workers{workers}"));
        finish(&mut run(&pipeline, &state, workers)).succeeded();
        assert!(sums(&state) == expected && releases(&state) == released, "{workers} workers");
    }
    for workers in [1, 2] {
        let state = lab.path(&format!("processes{workers}"));
        run_two(&pipeline, &pipeline, &state, workers);
        assert!(sums(&state) == expected && releases(&state) == released, "two processes of {workers}");
    }
}

/// A packed file of full length.
fn stored(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::none());
    encoder.write_all(text.as_bytes()).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

/// Writes text, a Parquet file, or several packed files, and returns their paths.
fn write_as(lab: &Lab, kind: &str, name: &str, text: &str) -> String {
    let path = |file: String| lab.path(&file).display().to_string();
    match kind {
        "csv" => {
            lab.write(&format!("{name}.csv"), text);
            format!("{:?}", [path(format!("{name}.csv"))])
        }
        "parquet" => {
            let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split(',').collect()).collect();
            parquet::write(&lab.path(&format!("{name}.parquet")), &rows, 50_000);
            format!("{:?}", [path(format!("{name}.parquet"))])
        }
        _ => {
            // No file of the other process may be shorter.
            let packed = |text: &str| if name.starts_with("zeros") { stored(text) } else { gzip(text) };
            let lines: Vec<&str> = text.split_inclusive('\n').collect();
            let pack = |(number, rows): (usize, &[&str])| {
                let file = format!("{name}{number}.csv.gz");
                lab.write(&file, packed(&[&lines[..1], rows].concat().concat()));
                path(file)
            };
            let files = lines[1..].chunks(12_000).enumerate().map(pack);
            format!("{:?}", files.collect::<Vec<_>>())
        }
    }
}

/// In the other process, the file has the same number of rows with other values. So the sums show
/// which process has read them.
#[test]
fn values_are_read_by_the_other_process() {
    let (lab, stream) = (Lab::new(), Stream { rows: 70_000, epochs: 70 });
    let text = stream.csv();
    let zeros: Vec<String> = text
        .lines()
        .enumerate()
        .map(|(row, line)| match line.rsplit_once('.') {
            Some((values, last)) if row > 0 => format!("{values}.{}\n", "0".repeat(last.len())),
            _ => format!("{line}\n"),
        })
        .collect();
    lab.write("data.csv", &text);
    let expected = expected_sums(&lab.write("plain.toml", stream.pipeline("data.csv", "")));
    for kind in ["csv", "parquet", "packed"] {
        let [pipeline, other] = [("data", &text), ("zeros", &zeros.concat())].map(|(name, text)| {
            let paths = write_as(&lab, kind, &format!("{name}-{kind}"), text);
            let file = stream.pipeline("x", "").replace("'x'\nformat = 'csv'", &paths);
            lab.write(&format!("{name}-{kind}.toml"), file)
        });
        let (alone, state) = (lab.path(&format!("alone-{kind}")), lab.path(kind));
        if kind != "csv" {
            finish(&mut run(&pipeline, &alone, 2)).succeeded();
            assert!(sums(&alone) == expected, "{kind}: two workers");
        }
        run_two(&pipeline, &other, &state, 1);
        let found = sums(&state);
        assert_eq!(found.len(), expected.len());
        let differ = found.iter().zip(&expected).filter(|(found, expected)| found != expected).count();
        assert!(found[0] == expected[0] && differ > 2, "{kind}: {differ} epochs have rows of the other");
        let agree = found.iter().zip(&expected).all(|(found, expected)| found[0] == expected[0]);
        assert!(agree, "{kind}: the counts agree");
    }
}

#[test]
fn killed_readers_resume_exactly_once() {
    let (lab, stream) = (Lab::new(), Stream { rows: 120_000, epochs: 3000 });
    lab.write("data.csv", stream.csv());
    let pipeline = lab.write("pipeline.toml", stream.pipeline("data.csv", ""));
    let state = lab.path("state");
    let start = || -> Vec<Child> {
        let processes = run_as_two(&pipeline, &state, 1);
        processes.into_iter().map(|mut process| process.spawn().expect("the process starts")).collect()
    };
    let mut seen = Vec::new();
    for (generation, victim) in [(1, 1), (2, 0), (3, 1)] {
        let mut processes = start();
        let last = seen.len() as u64 + 400;
        await_until("the cluster publishes", || {
            releases(&state)
                .last()
                .is_some_and(|release| release.generation == generation && release.epoch > last)
        });
        processes[victim].kill().expect("a child can be killed");
        processes.into_iter().for_each(|process| drop(wait(process)));
        let now = releases(&state);
        assert!(now.starts_with(&seen), "an epoch that had been published is another now");
        assert!(now.len() < stream.epochs as usize, "the run was killed half-way");
        seen = now;
    }
    start().into_iter().for_each(|process| drop(wait(process).succeeded()));
    assert!(releases(&state).starts_with(&seen));
    assert!(sums(&state) == expected_sums(&pipeline), "as computed row by row");
}
