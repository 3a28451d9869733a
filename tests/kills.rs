//! `kill -9` at random moments and, after every one, a loss of power: whatever of the logs had not been synced is cut,
//! zeroed, or garbage. Every epoch is published once, never changes, and the sums come out as if nothing had happened.
//!
//! `HUSHFLOW_KILLS=n` asks for n kills instead of 200.

mod harness;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use harness::{Lab, PRIVATE_LOG, Random, Stream, expected_sums, frames, logs, run, run_as_two, sums, wait};
use hushflow::state::{PublicReader, ReleaseFrame};

fn kills() -> usize {
    std::env::var("HUSHFLOW_KILLS").ok().and_then(|number| number.parse().ok()).unwrap_or(200)
}

/// What was seen in a public log so far. Noise is fresh in every run, so an epoch that was drawn twice shows.
struct Witness {
    state: PathBuf,
    seen: Vec<ReleaseFrame>,
}

impl Witness {
    /// Looks again: what was there before is as it was, or not there yet after a loss of power. Gives the number of
    /// epochs seen since the beginning, or the epoch that was published twice.
    fn look(&mut self) -> Result<usize, u64> {
        let now = readable(&self.state);
        let twice = now.iter().zip(&self.seen).find(|(now, before)| now != before);
        if let Some((now, _)) = twice {
            return Err(now.epoch);
        }
        self.seen.extend_from_slice(now.get(self.seen.len()..).unwrap_or_default());
        Ok(self.seen.len())
    }
}

/// The releases up to the first that can't be read.
fn readable(state: &Path) -> Vec<ReleaseFrame> {
    let Ok(mut reader) = PublicReader::open(state) else { return Vec::new() };
    let frames: Vec<_> = std::iter::from_fn(|| reader.next_frame().ok().flatten()).collect();
    assert!(frames.iter().map(|frame| frame.epoch).eq(1..=frames.len() as u64));
    frames
}

/// One process with up to three workers, or two with up to two each.
fn start(pipeline: &Path, state: &Path, random: &mut Random) -> Vec<Child> {
    let workers = 1 + random.below(3) as usize;
    let commands = match random.below(4) {
        0 => Vec::from(run_as_two(pipeline, state, workers.min(2))),
        _ => vec![run(pipeline, state, workers)],
    };
    commands.into_iter().map(|mut command| command.spawn().expect("the run starts")).collect()
}

/// Kills all processes soon after their start or, three times of four, after they have published some more bytes. Gives
/// whether they were still running.
fn strike(mut children: Vec<Child>, state: &Path, random: &mut Random) -> bool {
    let published = || state.join("public.log").metadata().map_or(0, |log| log.len());
    if random.below(4) > 0 {
        let enough = published() + 1 + random.below(400_000);
        while published() < enough && children[0].try_wait().expect("a child can be asked").is_none() {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
    std::thread::sleep(Duration::from_micros(random.below(20_000)));
    if random.below(2) == 0 {
        children.reverse();
    }
    children.iter_mut().for_each(|child| child.kill().expect("a child can be killed"));
    let ended = children.into_iter().map(wait).filter(|ended| ended.code == Some(0)).count();
    ended == 0
}

/// The power goes: what was not synced of a log is lost in one way or another.
fn lose_power(state: &Path, published: usize, random: &mut Random) {
    // What another segment follows had been synced, and so had the beginning of a segment.
    let logs = if state.exists() { logs(state) } else { Vec::new() };
    let Some(last) = logs.iter().rfind(|name| name.starts_with("private")) else { return };
    let private = state.join(last);
    let found = frames(&private);
    // What was published had been synced before, and so had what a later frame says.
    let of_published = found
        .iter()
        .filter(|frame| [1, 6].contains(&frame.kind) || frame.kind == 3 && frame.epoch <= published as u64);
    let said = found.iter().map(|frame| frame.synced).max().unwrap_or(0);
    lose(&private, of_published.map(|frame| frame.end).max().unwrap_or(0).max(said), random);

    // The public log is synced before a checkpoint; after a loss it is written anew from the private one.
    let checkpoints = ["checkpoint.a", "checkpoint.b"].map(|name| frames(&state.join(name)));
    let newest = checkpoints.iter().flatten().map(|frame| frame.epoch).max();
    let public = state.join("public.log");
    let synced = newest.map_or(0, |newest| {
        frames(&public).iter().filter(|frame| frame.epoch <= newest).map(|frame| frame.end).max().unwrap_or(0)
    });
    lose(&public, synced, random);
}

fn lose(log: &Path, synced: u64, random: &mut Random) {
    let Ok(file) = File::options().write(true).open(log) else { return };
    let length = file.metadata().expect("a log").len();
    if length <= synced {
        return;
    }
    let from = synced + random.below(length - synced);
    let bytes = (length - from) as usize;
    match random.below(5) {
        0 => return,
        1 => file.set_len(from),
        2 => file.write_all_at(&vec![0; bytes], from),
        3 => {
            let garbage: Vec<u8> = (0..bytes).map(|_| random.below(256) as u8).collect();
            file.write_all_at(&garbage, from)
        }
        // A sector did not arrive, and later ones did.
        _ => file.write_all_at(&vec![0; bytes.min(512)], from),
    }
    .expect("the test may write its files");
}

#[test]
fn killed_runs_publish_every_epoch_once_whatever_the_disk_forgets() {
    let lab = Lab::new();
    let stream = Stream { rows: 60_000, epochs: 1000 };
    lab.write("data.csv", stream.csv());
    let pipeline = lab.write("pipeline.toml", stream.pipeline("data.csv", ""));
    let expected = expected_sums(&pipeline);
    let mut random = Random(1);
    let (mut killed, mut partial, mut round) = (0, 0, 0);
    while killed < kills() {
        round += 1;
        let state = lab.path(&format!("state {round}"));
        let mut witness = Witness { state: state.clone(), seen: Vec::new() };
        loop {
            let before = witness.seen.len();
            let was_running = strike(start(&pipeline, &state, &mut random), &state, &mut random);
            let epochs = witness.look().expect("no epoch is published twice");
            partial += usize::from((before + 1..stream.epochs as usize).contains(&epochs));
            killed += usize::from(was_running);
            if !was_running {
                break;
            }
            lose_power(&state, epochs, &mut random);
        }
        assert_eq!(witness.look(), Ok(stream.epochs as usize));
        assert!(sums(&state) == expected, "the sums are not those of a run that nobody killed");
    }
    assert!(partial * 4 >= killed, "only {partial} of {killed} kills left a run half done");
    let told = writeln!(std::io::stderr(), "{killed} kills in {round} runs, {partial} of them half-way");
    told.expect("standard error is open");
}

/// The campaign must be able to fail: bytes that had been synced are missed.
#[test]
fn losing_what_was_synced_is_noticed() {
    let lab = Lab::new();
    let stream = Stream { rows: 2000, epochs: 20 };
    lab.write("data.csv", stream.csv());
    let pipeline = lab.write("pipeline.toml", stream.pipeline("data.csv", ""));
    let state = lab.path("state");
    harness::finish(&mut run(&pipeline, &state, 1)).succeeded();
    let mut witness = Witness { state: state.clone(), seen: Vec::new() };
    assert_eq!(witness.look(), Ok(20));
    let (private, public) = (state.join(PRIVATE_LOG), state.join("public.log"));
    let kept = |log: &Path, epoch| {
        frames(log).iter().filter(|frame| frame.epoch <= epoch).map(|frame| frame.end).max()
    };
    harness::cut(&private, kept(&private, 12).expect("twelve epochs"));
    harness::cut(&public, kept(&public, 10).expect("ten epochs"));
    harness::finish(&mut run(&pipeline, &state, 1)).succeeded();
    assert_eq!(witness.look(), Err(13), "epochs 13 to 20 were drawn again");
}
