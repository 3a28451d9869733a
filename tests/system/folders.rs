//! Folders of files that the processes of a cluster follow in turn: the exact sums are those of one
//! reader of the same rows, with any number of processes, also when these are killed. The list that
//! numbers the files stays in the state directory.

use std::path::{Path, PathBuf};
use std::process::Child;

use crate::harness::{
    Lab, Random, Stream, await_until, finish, free_hosts_of, hushflow, releases, run, sums, wait,
};

const STREAM: Stream = Stream { rows: 2400, epochs: 24 };

/// A time after which the last epoch has ended, and no row is late.
const AFTER_ALL: &str = "2020-01-01T00:50:00Z";

/// A pipeline that follows these folders, each with a clock of its own.
fn pipeline(lab: &Lab, name: &str, folders: &[&str]) -> PathBuf {
    let source = |(number, folder): (usize, &&str)| {
        format!(
            "[[sources]]\nname = 's{number}'\npath = '{folder}/*.csv'\nfollow = true\nlargest_jump = '2h'\n"
        )
    };
    let sources: String = folders.iter().enumerate().map(source).collect();
    let text = STREAM.pipeline("x", "").replace("[source]\npath = 'x'\nformat = 'csv'\n", &sources);
    folders.iter().for_each(|folder| drop(std::fs::create_dir(lab.path(folder))));
    lab.write(name, text)
}

/// A row that closes all epochs.
fn last(row: &str) -> String {
    let (_, rest) = row.split_once(",k").expect("a key");
    format!("{AFTER_ALL},{AFTER_ALL},k{rest}")
}

/// Starts a run over these pipelines, one for each process.
fn start(pipelines: &[&Path], state: &Path) -> Vec<Child> {
    let hosts = free_hosts_of(pipelines.len());
    let process = |(process, pipeline): (usize, &&Path)| {
        let mut command = run(pipeline, state, 1);
        if pipelines.len() > 1 {
            command.args(["--hosts", &hosts, "--process", &process.to_string()]);
        }
        command.spawn().expect("the process starts")
    };
    pipelines.iter().enumerate().map(process).collect()
}

/// The other process finds other values in files of the same names. So the sums show who has read
/// them.
#[test]
fn every_other_folder_is_read_by_the_other_process() {
    let (lab, header, rows, expected) = STREAM.laid_out();
    let pipelines = [("one.toml", ["a", "b"]), ("two.toml", ["c", "d"])];
    let pipelines = pipelines.map(|(name, folders)| pipeline(&lab, name, &folders));
    for (folders, is_zero) in [(["a", "b"], false), (["c", "d"], true)] {
        for (number, folder) in folders.into_iter().enumerate() {
            let mut text = header.clone();
            for row in rows.iter().skip(number).step_by(2) {
                let fields: Vec<&str> = row.trim_end().split(',').collect();
                let zeros = [&fields[..3], &["0"; 5]].concat().join(",") + "\n";
                text += if is_zero { &zeros } else { row };
            }
            lab.write(&format!("{folder}/rows.csv"), text + &last(&rows[0]));
        }
    }
    let state = lab.path("state");
    let children = start(&[&pipelines[0], &pipelines[1]], &state);
    children.into_iter().for_each(|child| drop(wait(child).succeeded()));
    let found = sums(&state);
    assert_eq!(found.len(), expected.len());
    for (epoch, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found[0], expected[0], "the counts of epoch {epoch} agree");
        assert!(found[1..] != expected[1..], "epoch {epoch} has rows of the other process");
    }
}

/// Files come while up to three processes read, and one is killed after the other.
#[test]
fn killed_processes_count_every_row_of_a_folder_once() {
    let (lab, header, rows, expected) = STREAM.laid_out();
    let folders = ["a", "b", "c"];
    let (pipeline, state) = (pipeline(&lab, "folders.toml", &folders), lab.path("state"));
    let mut random = Random(13);
    for (round, processes) in [2, 3, 1, 3].into_iter().enumerate() {
        let mut children = start(&vec![&*pipeline; processes], &state);
        let seen = releases(&state);
        let mut files = folders.map(|_| header.clone());
        for row in &rows[600 * round..][..600] {
            files[random.below(3) as usize] += row;
        }
        for (folder, file) in folders.iter().zip(files) {
            lab.write(&format!("{folder}/{round}.csv"), file);
        }
        await_until("the cluster publishes", || releases(&state).len() > seen.len() + 1);
        children[round % processes].kill().expect("a child can be killed");
        children.into_iter().for_each(|child| drop(wait(child)));
        assert!(releases(&state).starts_with(&seen), "an epoch that had been published is another now");
    }
    let children = start(&[&*pipeline; 2], &state);
    for folder in folders {
        lab.write(&format!("{folder}/last.csv"), header.clone() + &last(&rows[0]));
    }
    children.into_iter().for_each(|child| drop(wait(child).succeeded()));
    assert!(sums(&state) == expected, "the sums are not those of a file");
    finish(hushflow(["verify"]).arg(&state)).succeeded();
    for list in ["followed-1", "followed-2", "followed-3"] {
        let names = std::fs::read(state.join(list)).expect("a list of the first process");
        let found = |name: &str| names.windows(name.len()).any(|part| part == name.as_bytes());
        assert!(["0.csv", "1.csv", "2.csv", "3.csv", "last.csv"].iter().all(|name| found(name)), "{list}");
    }
}
