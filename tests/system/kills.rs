//! `kill -9` at random moments, each followed by a power cut: unsynced parts of the logs are cut,
//! zeroed, or garbage. Every epoch is published once, never changes, and the sums equal those of an
//! undisturbed run.
//!
//! `HUSHFLOW_KILLS=n` runs n kills instead of 200.

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
fn strike(mut children: Vec<Child>, state: &Path, random: &mut Random) -> bool {
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

#[test]
fn killed_runs_publish_every_epoch_once_after_lost_writes() {
    let lab = Lab::new();
    let stream = Stream { rows: 24_000, epochs: 400 };
    lab.write("data.csv", stream.csv());
    let pipeline = lab.write("pipeline.toml", stream.pipeline("data.csv", ""));
    let expected = expected_sums(&pipeline);
    let mut random = Random(1);
    let (mut killed, mut partial, mut round) = (0, 0, 0);
    while killed < kills(200) {
        round += 1;
        let state = lab.path(&format!("state {round}"));
        let mut witness = Witness::of(&state);
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
    let written = writeln!(std::io::stderr(), "{killed} kills in {round} runs, {partial} of them half-way");
    written.expect("standard error is open");
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
    assert_eq!(witness.look(), Ok(20));
    let (private, public) = (state.join(PRIVATE_LOG), state.join("public.log"));
    let end_of_epoch = |log: &Path, epoch| {
        frames(log).iter().filter(|frame| frame.epoch <= epoch).map(|frame| frame.end).max()
    };
    harness::cut(&private, end_of_epoch(&private, 12).expect("twelve epochs"));
    harness::cut(&public, end_of_epoch(&public, 10).expect("ten epochs"));
    harness::finish(&mut run(&pipeline, &state, 1)).succeeded();
    assert_eq!(witness.look(), Err(13), "epochs 13 to 20 were drawn again");
}
