//! Tests growing files, and directories that gain files: each row counts once, whenever the run is
//! killed.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use crate::harness::{Lab, Random, Stream, await_until, finish, releases, run, stop, sums, wait};

const STREAM: Stream = Stream { rows: 4000, epochs: 40 };

struct GrowingStream {
    lab: Lab,
    header: String,
    rows: Vec<String>,
    expected: Vec<Vec<i128>>,
}

impl GrowingStream {
    fn new() -> Self {
        let (lab, header, rows, expected) = STREAM.laid_out();
        fs::create_dir(lab.path("in")).expect("a directory");
        GrowingStream { lab, header, rows, expected }
    }

    fn pipeline(&self, path: &str) -> PathBuf {
        let text = STREAM.pipeline(path, "").replacen("[source]", "[source]\nfollow = true", 1);
        self.lab.write("pipeline.toml", text)
    }

    fn start(&self, pipeline: &Path, arguments: &[&str]) -> Child {
        run(pipeline, &self.state(), 2).args(arguments).spawn().expect("the run starts")
    }

    fn state(&self) -> PathBuf {
        self.lab.path("state")
    }

    fn append(&self, name: &str, text: &str) {
        let mut options = File::options();
        let mut file = options.append(true).create(true).open(self.lab.path(name)).expect("a file");
        file.write_all(text.as_bytes()).expect("a file can grow");
    }

    fn check(&self, run: Child) {
        wait(run).succeeded();
        assert!(sums(&self.state()) == self.expected, "the sums are not those of one file");
    }
}

const UNTIL_IDLE: [&str; 2] = ["--until-idle", "1s"];

#[test]
fn a_growing_directory_is_read_once_across_killed_runs() {
    let case = GrowingStream::new();
    let pipeline = case.pipeline("in/*.csv");
    case.lab.write("in/hidden.tmp", "no,such,columns\n");
    let mut random = Random(5);
    let (mut row, mut file) = (0, 0);
    while row < case.rows.len() {
        let mut run = case.start(&pipeline, &[]);
        for _ in 0..1 + random.below(3) {
            let name = format!("in/{file:03}.csv");
            if !case.lab.path(&name).exists() {
                // The header and rows, in parts that end anywhere.
                case.append(&name, &case.header);
            }
            let count = (random.below(400) as usize).min(case.rows.len() - row);
            let text = case.rows[row..row + count].concat();
            let (a, b) = text.split_at(random.below(1 + text.len() as u64) as usize);
            case.append(&name, a);
            std::thread::sleep(Duration::from_millis(random.below(60)));
            case.append(&name, b);
            row += count;
            file += random.below(2);
        }
        std::thread::sleep(Duration::from_millis(random.below(150)));
        let seen = releases(&case.state()).len();
        if random.below(2) == 0 {
            run.kill().expect("a child can be killed");
            wait(run);
        } else {
            stop(&run);
            wait(run).stopped();
        }
        assert!(releases(&case.state()).len() >= seen);
    }
    let run = case.start(&pipeline, &UNTIL_IDLE);
    case.check(run);
    let list = fs::read(case.state().join("followed")).expect("the list of files");
    let names = |name: &[u8]| list.windows(name.len()).filter(|window| *window == name).count();
    assert_eq!((names(b"000.csv"), names(b"hidden")), (1, 0));
}

#[test]
fn an_incomplete_line_waits_for_its_end() {
    let case = GrowingStream::new();
    let pipeline = case.pipeline("in/a.csv");
    let run = case.start(&pipeline, &[]);
    let text = case.header.clone() + &case.rows.concat();
    let cut = text.len() / 2;
    let cut = cut + text[cut..].find(',').expect("a comma") + 1;
    case.append("in/a.csv", &text[..10]);
    std::thread::sleep(Duration::from_millis(100));
    case.append("in/a.csv", &text[10..cut]);
    await_until("epochs are published", || releases(&case.state()).len() >= 18);
    stop(&run);
    wait(run).succeeded();
    let run = case.start(&pipeline, &[]);
    case.append("in/a.csv", &text[cut..]);
    await_until("epochs are published", || releases(&case.state()).len() >= 38);
    stop(&run);
    wait(run).succeeded();
    case.check(case.start(&pipeline, &UNTIL_IDLE));
}

#[test]
fn files_that_were_read_may_be_removed() {
    let case = GrowingStream::new();
    let pipeline = case.pipeline("in");
    for (name, rows) in [("in/a", 0..1000), ("in/b", 1000..2000), ("in/c", 2000..3000)] {
        case.append(name, &(case.header.clone() + &case.rows[rows].concat()));
    }
    let run = case.start(&pipeline, &[]);
    await_until("epochs are published", || releases(&case.state()).len() >= 28);
    stop(&run);
    wait(run).succeeded();
    fs::remove_file(case.lab.path("in/a")).expect("a file can be removed");
    // A name that sorts before the known ones is still a new file.
    case.append("in/0", &(case.header.clone() + &case.rows[3000..].concat()));
    case.check(case.start(&pipeline, &UNTIL_IDLE));
}

/// A name is bytes: it may contain a line end, and need not be UTF-8.
#[test]
fn files_of_any_name_are_read_once() {
    let case = GrowingStream::new();
    let pipeline = case.pipeline("in");
    let names: [&[u8]; 4] = [b"0\r", b"1\n2", b"3 \xff", b"4.csv"];
    for (name, (rows, epochs)) in names.iter().zip(case.rows.chunks(1000).zip([8, 18, 28, 38])) {
        let path = case.lab.path("in").join(OsStr::from_bytes(name));
        fs::write(path, case.header.clone() + &rows.concat()).expect("a file");
        let run = case.start(&pipeline, &[]);
        await_until("epochs are published", || releases(&case.state()).len() >= epochs);
        stop(&run);
        wait(run).succeeded();
    }
    case.check(case.start(&pipeline, &UNTIL_IDLE));
}

#[test]
fn a_list_that_cannot_be_followed_is_an_error_and_not_the_end() {
    let case = GrowingStream::new();
    let pipeline = case.pipeline("in/a.csv");
    let text = |rows: usize| case.header.clone() + &case.rows[..rows].concat();
    let begin = |rows| {
        fs::write(case.lab.path("in/a.csv"), text(rows)).expect("a file");
        let run = case.start(&pipeline, &[]);
        await_until("epochs are published", || releases(&case.state()).len() >= rows / 100 - 2);
        run
    };
    let run = begin(1000);
    fs::write(case.lab.path("in/a.csv"), text(1)).expect("a file can be cut");
    wait(run).failed(1, &["a.csv", "it was cut or replaced"]);
    let run = begin(1300);
    fs::write(case.lab.path("in/new"), text(1400)).expect("a file");
    fs::rename(case.lab.path("in/new"), case.lab.path("in/a.csv")).expect("a file can be replaced");
    wait(run).failed(1, &["a.csv", "another file has this name now"]);
    let run = begin(1600);
    let giant = "\"".to_owned() + &"secret".repeat(400_000);
    case.append("in/a.csv", &giant);
    let ended = wait(run);
    assert!(!ended.err.contains("secret"), "{}", ended.err);
    ended.failed(1, &["a.csv:1602", "longer than"]);
    fs::remove_file(case.state().join("followed")).expect("the list can be lost");
    finish(&mut run_of(&case, &pipeline)).failed(1, &["the list of followed files has 0 names"]);
    let plain = case.lab.write("plain.toml", STREAM.pipeline("data.csv", ""));
    finish(&mut run_of(&case, &plain)).failed(1, &["another kind of source"]);
}

fn run_of(case: &GrowingStream, pipeline: &Path) -> std::process::Command {
    run(pipeline, &case.state(), 1)
}
