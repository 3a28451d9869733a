//! `kill -9` at random moments, each followed by a power cut: unsynced parts of the logs are cut,
//! zeroed, or garbage. Every epoch is published once, never changes, and the sums equal those of an
//! undisturbed run.
//!
//! `HUSHFLOW_KILLS=n` runs n kills instead of 200.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use crate::harness::power::{Witness, kills, lose_power};
use crate::harness::{
    self, Lab, PRIVATE_LOG, Random, Stream, expected_sums, frames, run, run_as_two, sums, wait,
};

/// One process with up to three workers, or two with up to two each.
fn start(pipeline: &Path, state: &Path, random: &mut Random) -> Vec<Child> {
    let workers = 1 + random.below(3) as usize;
    let commands = match random.below(4) {
        0 => Vec::from(run_as_two(pipeline, state, workers.min(2))),
        _ => vec![run(pipeline, state, workers)],
    };
    commands.into_iter().map(|mut command| command.spawn().expect("the run starts")).collect()
}

/// Kills all processes soon after their start or, in three cases of four, after they have published
/// more bytes. Returns whether they were still running.
fn kill_at_random(mut children: Vec<Child>, state: &Path, random: &mut Random) -> bool {
    let published = || state.join("public.log").metadata().map_or(0, |log| log.len());
    if random.below(4) > 0 {
        let enough = published() + 1 + random.below(160_000);
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

/// Kills so far.
struct Kills {
    random: Random,
    killed: usize,
    /// Kills that left a run half done.
    partial: usize,
    rounds: usize,
}

impl Kills {
    fn new(seed: u64) -> Self {
        Kills { random: Random(seed), killed: 0, partial: 0, rounds: 0 }
    }

    /// Starts and kills runs until one publishes the last epoch. Every epoch is published once.
    fn round(&mut self, pipeline: &Path, state: &Path, epochs: usize) {
        self.rounds += 1;
        let mut witness = Witness::of(state);
        loop {
            let before = witness.seen.len();
            let was_running =
                kill_at_random(start(pipeline, state, &mut self.random), state, &mut self.random);
            let published = witness.observe().expect("no epoch is published twice");
            self.partial += usize::from((before + 1..epochs).contains(&published));
            self.killed += usize::from(was_running);
            if !was_running {
                break;
            }
            lose_power(state, published, &mut self.random);
        }
        assert_eq!(witness.observe(), Ok(epochs));
    }

    fn report(&self) {
        let Kills { killed, partial, rounds, .. } = self;
        assert!(partial * 4 >= *killed, "only {partial} of {killed} kills left a run half done");
        let written =
            writeln!(std::io::stderr(), "{killed} kills in {rounds} runs, {partial} of them half-way");
        written.expect("standard error is open");
    }
}

#[test]
fn killed_runs_publish_every_epoch_once_after_lost_writes() {
    let lab = Lab::new();
    let stream = Stream { rows: 24_000, epochs: 400 };
    lab.write("data.csv", stream.csv());
    let pipeline = lab.write("pipeline.toml", stream.pipeline("data.csv", ""));
    let expected = expected_sums(&pipeline);
    let mut campaign = Kills::new(1);
    while campaign.killed < kills(60) {
        let state = lab.path(&format!("state {}", campaign.rounds));
        campaign.round(&pipeline, &state, stream.epochs as usize);
        assert!(sums(&state) == expected, "the sums are not those of a run that nobody killed");
    }
    campaign.report();
}

/// The keys that a log shows.
fn shown_keys(state: &Path) -> BTreeSet<String> {
    let lines = harness::finish(&mut harness::tail(state, &[])).succeeded().json();
    lines.iter().filter_map(|line| Some(line["key"].as_str()?.to_owned())).collect()
}

/// Discovered keys after kills: with the noise of a seed the log is that of an undisturbed run, and
/// with fresh noise no epoch, and no discovery in it, is drawn twice.
#[test]
fn killed_runs_discover_each_key_once() {
    const EPOCHS: usize = 300;
    let lab = Lab::new();
    // Four keys with a half to a sixteenth of the rows, and further keys of a single row each.
    let key = |row: u32| match row.trailing_ones() {
        ones @ 0..4 => format!("k{ones}"),
        _ => format!("rare-{row}"),
    };
    let rows: String = (0..24_000).map(|row| format!("{},{}\n", row % 7, key(row))).collect();
    lab.write("data.csv", format!("x,key\n{rows}"));
    let pipeline = |name: &str, more: &str| {
        let text = format!(
            "name = 'keys'
source.path = 'data.csv'
columns = [{{ name = 'x', lower = 0, upper = 6 }}]
epochs = {{ records = {}, horizon = {EPOCHS} }}
privacy = {{ epsilon = 4, delta = 1e-6 }}
key = {{ column = 'key', discover = {{ delta = 1e-9, most = 30 }} }}
{more}",
            24_000 / EPOCHS
        );
        lab.write(name, text)
    };
    let (seeded, fresh) = (pipeline("seeded.toml", "simulation.seed = 3"), pipeline("fresh.toml", ""));
    let values = |state: &Path| {
        harness::releases(state).into_iter().map(|frame| (frame.epoch, frame.values)).collect::<Vec<_>>()
    };
    let whole = lab.path("whole");
    harness::finish(&mut run(&seeded, &whole, 1)).succeeded();
    let (expected, shown) = (values(&whole), shown_keys(&whole));
    assert!(expected.len() == EPOCHS && shown.iter().eq(["k0", "k1", "k2", "k3"]), "{shown:?}");
    let mut campaign = Kills::new(2);
    while campaign.killed < kills(20) {
        let is_seeded = campaign.rounds.is_multiple_of(2);
        let state = lab.path(&format!("state {}", campaign.rounds));
        campaign.round(if is_seeded { &seeded } else { &fresh }, &state, EPOCHS);
        assert!(!is_seeded || values(&state) == expected, "the log is not that of a run that nobody killed");
        assert_eq!(shown_keys(&state), shown);
    }
    campaign.report();
}

/// Checks that the test can fail: it detects synced bytes that were lost.
#[test]
fn a_lost_synced_epoch_is_detected() {
    let lab = Lab::new();
    let stream = Stream { rows: 2000, epochs: 20 };
    lab.write("data.csv", stream.csv());
    let pipeline = lab.write("pipeline.toml", stream.pipeline("data.csv", ""));
    let state = lab.path("state");
    harness::finish(&mut run(&pipeline, &state, 1)).succeeded();
    let mut witness = Witness::of(&state);
    assert_eq!(witness.observe(), Ok(20));
    let (private, public) = (state.join(PRIVATE_LOG), state.join("public.log"));
    let end_of_epoch = |log: &Path, epoch| {
        frames(log).iter().filter(|frame| frame.epoch <= epoch).map(|frame| frame.end).max()
    };
    harness::cut(&private, end_of_epoch(&private, 12).expect("twelve epochs"));
    harness::cut(&public, end_of_epoch(&public, 10).expect("ten epochs"));
    harness::finish(&mut run(&pipeline, &state, 1)).succeeded();
    assert_eq!(witness.observe(), Err(13), "epochs 13 to 20 were drawn again");
}
