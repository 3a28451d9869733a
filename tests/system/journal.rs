//! Sources with a journal: after any kill, an acknowledged record counts once, as does every record
//! that its sender repeats, and the sums equal those of an undisturbed run.
//!
//! `HUSHFLOW_KILLS=n` runs n kills instead of 40.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::harness::power::{Witness, kills, last_segment, lose_journal, lose_power};
use crate::harness::{
    self, Ended, Lab, Random, Stream, await_until, finish, hushflow, releases, run, sums, wait,
};

/// A stream in a file, a pipeline that reads it from the standard input, and the sums of an
/// undisturbed run.
struct JournalStream {
    lab: Lab,
    pipeline: PathBuf,
    /// The same pipeline with a socket.
    listening: PathBuf,
    header: String,
    rows: Vec<String>,
    expected: Vec<Vec<i128>>,
}

impl JournalStream {
    fn new(stream: &Stream) -> Self {
        let (lab, header, rows, expected) = stream.laid_out();
        let pipeline = lab.write("pipeline.toml", with_journal(&stream.pipeline("-", "")));
        let socket = format!("unix-listen://{}", lab.path("socket").display());
        let listening = stream.pipeline(&socket, "").replacen("[source]", "[source]\nacknowledge = true", 1);
        let listening = lab.write("listening.toml", listening);
        JournalStream { lab, pipeline, listening, header, rows, expected }
    }

    fn run(&self, state: &Path, workers: usize) -> Command {
        let mut command = run(&self.pipeline, state, workers);
        command.args(["--acknowledge", "-"]).stdin(Stdio::piped());
        command
    }

    /// Sends these lines, and kills the run once all `rows` rows are acknowledged.
    fn feed_and_kill(&self, state: &Path, lines: &str, rows: u64) {
        let mut child = self.run(state, 1).spawn().expect("the run starts");
        let mut input = child.stdin.take().expect("a pipe");
        let mut numbers = acknowledged_numbers(&mut child);
        numbers.next().expect("the number at the start");
        input.write_all(lines.as_bytes()).expect("the run listens");
        assert!(numbers.any(|number| number == rows), "all rows are acknowledged");
        child.kill().expect("a child can be killed");
        assert_eq!(wait(child).code, None);
    }

    /// Sends these lines and closes the input.
    fn feed(&self, state: &Path, lines: &str) -> Ended {
        let mut child = self.run(state, 1).spawn().expect("the run starts");
        let mut input = child.stdin.take().expect("a pipe");
        // The write fails if the run has refused the rows.
        let _ = input.write_all(lines.as_bytes());
        drop(input);
        wait(child)
    }
}

fn with_journal(pipeline: &str) -> String {
    pipeline.replacen("format = 'csv'", "format = 'csv'\njournal = true", 1)
}

/// Acknowledged numbers of a run.
pub(crate) fn acknowledged_numbers(child: &mut Child) -> impl Iterator<Item = u64> + use<> {
    acknowledgements(child.stdout.take().expect("a pipe"))
}

fn acknowledgements(from: impl Read) -> impl Iterator<Item = u64> {
    BufReader::new(from).lines().map_while(Result::ok).map_while(|line| line.parse().ok())
}

/// A stream to a run and one from it.
type Streams = (Box<dyn Write + Send>, Box<dyn Read + Send>);

/// A sender that forgets acknowledged rows, so it can't send them again.
struct Sender<'a> {
    case: &'a JournalStream,
    /// Rows that it knows to be safe.
    safe: u64,
}

impl Sender<'_> {
    /// Sends the unsafe rows to a run, which ends after them. Returns how it ended.
    fn send(&mut self, state: &Path) -> Ended {
        let mut child = self.case.run(state, 1).spawn().expect("the run starts");
        let ways = pipes(&mut child);
        self.feed(child, ways, |_, _| ())
    }

    /// Sends the unsafe rows to a run, over standard input or a socket, and kills it at a random
    /// moment. A run on standard input may end first.
    fn send_and_kill(&mut self, state: &Path, random: &mut Random) -> Ended {
        let workers = 1 + random.below(3) as usize;
        let enough = random.below(40);
        let pause = Duration::from_micros(random.below(5_000));
        let ends = random.below(2) == 0;
        let (child, ways) = if ends {
            let mut child = self.case.run(state, workers).spawn().expect("the run starts");
            let ways = pipes(&mut child);
            (child, ways)
        } else {
            let socket = self.case.lab.path("socket");
            let mut child = run(&self.case.listening, state, workers).spawn().expect("the run starts");
            let ways = connect(&mut child, &socket);
            (child, ways)
        };
        let all = self.case.rows.len() as u64;
        self.feed(child, ways, |child, (safe, acknowledged)| {
            // A run on a socket waits for more rows forever.
            let waits = || {
                acknowledged.load(Ordering::Relaxed) < enough && (ends || safe.load(Ordering::Relaxed) < all)
            };
            while waits() && child.try_wait().expect("a child can be asked").is_none() {
                std::thread::sleep(Duration::from_micros(200));
            }
            std::thread::sleep(pause);
            child.kill().expect("a child can be killed");
        })
    }

    /// Sends the unsafe rows and calls `kill` with the last number and the count of numbers
    /// received.
    fn feed(
        &mut self,
        mut child: Child,
        (input, back): Streams,
        kill: impl FnOnce(&mut Child, (&AtomicU64, &AtomicU64)),
    ) -> Ended {
        let mut numbers = acknowledgements(back);
        // A run that has published everything waits for no sender, and may not have noticed a
        // connection.
        let Some(first) = numbers.next() else { return wait(child) };
        assert!(first >= self.safe, "{first} are left of {} acknowledged records", self.safe);
        let rows = &self.case.rows[first as usize..];
        let (safe, acknowledged) = (AtomicU64::new(first), AtomicU64::new(0));
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| pour(input, &self.case.header, rows));
            scope.spawn(|| {
                for number in numbers {
                    assert!(number > safe.swap(number, Ordering::Relaxed), "acknowledgements grow");
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                }
            });
            kill(&mut child, (&safe, &acknowledged));
            wait(child)
        });
        self.safe = safe.into_inner();
        ended
    }
}

fn pipes(child: &mut Child) -> Streams {
    let (input, back) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    (Box::new(input), Box::new(back))
}

/// Connects as soon as the run listens.
fn connect(child: &mut Child, socket: &Path) -> Streams {
    let mut found = None;
    await_until("the run listens", || {
        assert_eq!(child.try_wait().expect("a child can be asked"), None, "the run goes on");
        found = UnixStream::connect(socket).ok();
        found.is_some()
    });
    let stream = found.expect("a connection");
    (Box::new(stream.try_clone().expect("a handle")), Box::new(stream))
}

/// Writes rows until they end or the reader is gone.
fn pour(mut input: impl Write, header: &str, rows: &[String]) {
    if input.write_all(header.as_bytes()).is_err() {
        return;
    }
    for part in rows.chunks(50) {
        if input.write_all(part.concat().as_bytes()).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// After every kill the power fails, for the logs and the journal alike.
#[test]
fn killed_runs_count_every_record_once_after_lost_writes() {
    let stream = Stream { rows: 6_000, epochs: 120 };
    let case = JournalStream::new(&stream);
    let mut random = Random(1);
    let (mut killed, mut partial, mut round) = (0, 0, 0);
    while killed < kills(40) {
        round += 1;
        let state = case.lab.path(&format!("state {round}"));
        let mut sender = Sender { case: &case, safe: 0 };
        let mut witness = Witness::of(&state);
        loop {
            let before = sender.safe;
            let ended = sender.send_and_kill(&state, &mut random);
            let epochs = witness.observe().expect("no epoch is published twice");
            if ended.code.is_some() {
                ended.succeeded();
                break;
            }
            killed += 1;
            partial += usize::from((before + 1..stream.rows).contains(&sender.safe));
            lose_journal(&state, sender.safe, &mut random);
            lose_power(&state, epochs, &mut random);
        }
        // One more run with nothing left to do reports numbers that the sender may have missed.
        sender.send(&state).succeeded();
        assert_eq!(sender.safe, stream.rows);
        assert_eq!(witness.observe(), Ok(stream.epochs as usize));
        assert!(sums(&state) == case.expected, "the sums are not those of a run that nobody killed");
        finish(hushflow(["verify"]).arg(&state)).succeeded();
        std::fs::remove_dir_all(&state).expect("a state directory can be removed");
    }
    let written = writeln!(std::io::stderr(), "{killed} kills in {round} runs, {partial} of them half-way");
    written.expect("standard error is open");
}

/// Checks that the test can fail: acknowledged records lost by a disk are detected.
#[test]
fn a_lost_acknowledged_record_is_detected() {
    let case = JournalStream::new(&Stream { rows: 2000, epochs: 20 });
    let state = case.lab.path("state");
    case.feed_and_kill(&state, &(case.header.clone() + &case.rows[..20].concat()), 20);
    let segment = last_segment(&state).expect("a segment");
    let beginning = harness::frames(&segment).first().expect("a beginning").end;
    harness::cut(&segment, beginning);
    let mut child = case.run(&state, 1).spawn().expect("the run starts");
    assert_eq!(acknowledged_numbers(&mut child).next(), Some(0), "none of 20 acknowledged records is left");
    drop(child.stdin.take());
    wait(child);
}

#[test]
fn sessions_may_name_their_columns_in_another_order_and_none_may_lack_one() {
    let case = JournalStream::new(&Stream { rows: 2000, epochs: 20 });
    let state = case.lab.path("state");
    let (first, rest) = case.rows.split_at(700);
    let (second, third) = rest.split_at(700);
    case.feed_and_kill(&state, &(case.header.clone() + &first.concat()), 700);
    let reversed = |line: &String| line.trim().rsplit(',').collect::<Vec<_>>().join(",") + "\r\n";
    let second: String = second.iter().map(reversed).collect();
    case.feed_and_kill(&state, &(reversed(&case.header) + &second), 1400);
    let lacking = case.header.replace(",e", ",other") + &third.concat();
    case.feed(&state, &lacking).failed(1, &["<standard input>:1", "none of the 8 columns", "\"e\""]);
    case.feed(&state, &(case.header.clone() + &third.concat())).succeeded();
    assert!(sums(&state) == case.expected);
}

#[test]
fn journalled_records_are_counted_without_more_input_and_then_deleted() {
    let case = JournalStream::new(&Stream { rows: 2000, epochs: 20 });
    let state = case.lab.path("state");
    case.feed_and_kill(&state, &(case.header.clone() + &case.rows.concat()), 2000);
    let verified = finish(hushflow(["verify", "--json"]).arg(&state)).succeeded().json();
    assert_eq!(verified[0]["journal_sessions"], 1);
    finish(&mut run(&case.pipeline, &state, 2)).succeeded();
    assert!(sums(&state) == case.expected);
    let verified = finish(hushflow(["verify", "--json"]).arg(&state)).succeeded().json();
    assert_eq!(verified[0]["journal_bytes"], 0, "{}", verified[0]);
    let segment = last_segment(&state).expect("where the journal ended");
    let mode = std::os::unix::fs::PermissionsExt::mode(&segment.metadata().expect("a file").permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_full_disk_is_reported_and_loses_no_record() {
    let case = JournalStream::new(&Stream { rows: 4000, epochs: 20 });
    let state = case.lab.path("state");
    let mut limited = Command::new("sh");
    limited.args([
        "-c",
        "ulimit -f 40; exec \"$0\" \"$@\"",
        env!("CARGO_BIN_EXE_hushflow"),
        "run",
        "--quiet",
    ]);
    limited.arg(&case.pipeline).arg("--state").arg(&state).args(["--acknowledge", "-"]);
    limited.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = limited.spawn().expect("a shell");
    let mut input = child.stdin.take().expect("a pipe");
    let mut numbers = acknowledged_numbers(&mut child);
    assert_eq!(numbers.next(), Some(0));
    // The group gathered during a slow sync must not fill the disk before anything is safe.
    let (first, rest) = case.rows.split_at(50);
    input.write_all((case.header.clone() + &first.concat()).as_bytes()).expect("the run reads");
    let safe = numbers.next().expect("the first rows are safe");
    pour(input, "", rest);
    let safe = numbers.last().unwrap_or(safe);
    assert!((1..4000).contains(&safe), "{safe}");
    wait(child).failed(1, &["cannot write the file"]);
    let mut sender = Sender { case: &case, safe };
    sender.send(&state).succeeded();
    assert!(sums(&state) == case.expected);
}

#[test]
fn a_journal_that_was_damaged_or_lost_is_refused() {
    let case = JournalStream::new(&Stream { rows: 2000, epochs: 20 });
    let state = case.lab.path("state");
    case.feed_and_kill(&state, &(case.header.clone() + &case.rows[..1000].concat()), 1000);
    // Few rows, so that the last rows of the first session still wait for their epoch to close.
    case.feed_and_kill(&state, &(case.header.clone() + &case.rows[1000..1050].concat()), 1050);
    let first = state.join("ingest-000000-000000.log");
    let good = std::fs::read(&first).expect("a segment");
    let mut bad = good.clone();
    let last = bad.len() - 1;
    bad[last] ^= 1;
    std::fs::write(&first, &bad).expect("a segment can be damaged");
    let name = first.display().to_string();
    finish(hushflow(["verify"]).arg(&state)).failed(1, &[&name, "damaged at byte"]);
    case.feed(&state, "").failed(1, &[&name, "damaged at byte"]);
    std::fs::write(&first, &good).expect("a segment can be corrected");
    case.feed(&state, &(case.header.clone() + &case.rows[1050..].concat())).succeeded();
    assert!(sums(&state) == case.expected);
    finish(hushflow(["verify"]).arg(&state)).succeeded();
    std::fs::remove_file(last_segment(&state).expect("a segment")).expect("a segment can be removed");
    finish(hushflow(["verify"]).arg(&state)).failed(1, &["the ingest journal has nothing at byte"]);
    case.feed(&state, &case.header).failed(1, &["the ingest journal has nothing at byte"]);
}

#[test]
fn a_journal_can_be_switched_on_and_not_off() {
    let case = JournalStream::new(&Stream { rows: 2000, epochs: 20 });
    let state = case.lab.path("state");
    let plain = case.lab.write("plain.toml", Stream { rows: 2000, epochs: 20 }.pipeline("-", ""));
    let mut child = run(&plain, &state, 1).stdin(Stdio::piped()).spawn().expect("the run starts");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all((case.header.clone() + &case.rows[..1000].concat()).as_bytes()).expect("the run listens");
    await_until("some epochs are published", || releases(&state).len() > 2);
    child.kill().expect("a child can be killed");
    wait(child);
    // The sender continues with rows of unpublished epochs.
    case.feed(&state, &(case.header.clone() + &case.rows[1000..].concat())).succeeded();
    assert_eq!(releases(&state).len(), 20);
    finish(&mut run(&plain, &state, 1)).failed(1, &["journal = true"]);
}

#[test]
fn invalid_settings_are_explained() {
    let stream = Stream { rows: 2000, epochs: 20 };
    let lab = Lab::new();
    let check = |pipeline: &str, arguments: &[&str], parts: &[&str]| {
        let pipeline = lab.write("p.toml", pipeline);
        let ended =
            finish(hushflow(["run"]).arg(pipeline).arg("--state").arg(lab.path("state")).args(arguments));
        ended.failed(2, parts);
    };
    let journal = with_journal(&stream.pipeline("-", ""));
    check(
        &with_journal(&stream.pipeline("data.csv", "")),
        &[],
        &["p.toml:5:", "source.journal", "standard input"],
    );
    check(
        &journal.replacen("journal", "missing = 'reject'\njournal", 1),
        &[],
        &["source.missing", "can't be corrected"],
    );
    check(&stream.pipeline("-", ""), &["--acknowledge", "-"], &["journal = true"]);
    check(&journal, &["--acknowledge", "-"], &["add --quiet"]);
}
