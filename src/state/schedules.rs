//! Seeded schedules of runs that commit, write checkpoints, are killed, lose power, meet full disks
//! and failing syncs, and start again. One seed decides the order. After every step these
//! invariants hold:
//!
//! - commits are monotone: a committed epoch stays in every later run;
//! - shown implies committed: a release that a reader has seen is in the private log, after any
//!   loss;
//! - committed implies never redrawn: an epoch is seen with one value only;
//! - recovery is idempotent: starting twice equals starting once;
//! - sums and histories equal the prefix of the input: checkpoint and replay give those of the
//!   epochs.
//!
//! A failure prints its seed; `HUSHFLOW_SEED=s HUSHFLOW_SCHEDULES=1` replays it.
//! `HUSHFLOW_SCHEDULES=n` runs n schedules instead of 5,000.

use super::{
    EpochFrame, StateError,
    crash_tests::{BrokenPromise, CrashObserver, EPOCHS, checkpoint, stays_stopped},
    simulated::{DiskFault, LOSSES, PowerLoss, SimulatedDisk},
    storage::PUBLIC_LOG,
};

/// Largest number of runs in a schedule.
const MAX_RUNS: u64 = 6;

/// A SplitMix64 step: arbitrary, and the same every time.
pub(super) fn mix(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Seeded decisions.
struct Dice {
    seed: u64,
    rolls: u64,
}

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.rolls += 1;
        mix(self.seed, self.rolls) % sides
    }

    fn fault(&mut self) -> Option<DiskFault> {
        [Some(DiskFault::Power), Some(DiskFault::Full), Some(DiskFault::Sync), None][self.below(4) as usize]
    }

    fn loss(&mut self) -> PowerLoss {
        match self.below(2) {
            0 => PowerLoss::Some(mix(self.seed, 1000 + self.rolls)),
            _ => LOSSES[self.below(LOSSES.len() as u64) as usize],
        }
    }
}

/// Plays the schedule of `seed` on `disk`.
fn play(seed: u64, mut disk: SimulatedDisk) -> Result<(), BrokenPromise> {
    let mut dice = Dice { seed, rolls: 0 };
    let mut world = CrashObserver::new(seed % 2 == 1);
    for _ in 0..1 + dice.below(MAX_RUNS) {
        if let Some(fault) = dice.fault() {
            disk.fail_at(dice.below(60) as usize, fault);
        }
        run_once(&mut world, &disk, &mut dice)?;
        disk = match dice.below(3) {
            0 => disk.after_restart(),
            _ => disk.after_power_cut(dice.loss()),
        };
    }
    world.check_start(&disk)?;
    let published = disk.content(PUBLIC_LOG);
    world.check_start(&disk)?;
    (published == disk.content(PUBLIC_LOG))
        .then_some(())
        .ok_or("recovering twice is not recovering once".into())
}

/// One run: until it fails, is killed, or has committed all epochs.
fn run_once(world: &mut CrashObserver, disk: &SimulatedDisk, dice: &mut Dice) -> Result<(), BrokenPromise> {
    let Some(mut store) = world.start(disk)? else { return Ok(()) };
    while store.committed() < EPOCHS {
        let outcome = match dice.below(8) {
            0 => return Ok(()),
            1 => {
                let epoch = 1 + dice.below(EPOCHS);
                checkpoint(&mut store, epoch)
            }
            2 => {
                world.read_public_log(disk, dice.below(EPOCHS))?;
                Ok(())
            }
            _ => {
                let first = store.committed() + 1;
                let batch: Vec<EpochFrame> =
                    (first..=(first + dice.below(3)).min(EPOCHS)).map(|epoch| world.draw(epoch)).collect();
                let outcome = store.commit(&batch);
                // Readers may be faster than the run.
                world.read_public_log(disk, if dice.below(2) == 0 { EPOCHS } else { 0 })?;
                world.acknowledged = store.committed().max(world.acknowledged);
                outcome.map(drop)
            }
        };
        match outcome {
            Ok(()) | Err(StateError::WrongEpoch { .. }) => {}
            Err(_) => return stays_stopped(&mut store, disk),
        }
    }
    Ok(())
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|number| number.parse().ok()).unwrap_or(default)
}

#[test]
fn no_schedule_breaks_a_promise() {
    let first = number("HUSHFLOW_SEED", 0);
    let last = first + number("HUSHFLOW_SCHEDULES", 5_000);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for seed in (first..last).skip(thread).step_by(threads) {
                    play(seed, SimulatedDisk::default()).unwrap_or_else(|broken| {
                        panic!("HUSHFLOW_SEED={seed} HUSHFLOW_SCHEDULES=1: {broken}")
                    });
                }
            });
        }
    });
}

/// Returns the first seed whose schedule detects the planted fault.
fn first_seed_that_detects(plant: impl Fn(&SimulatedDisk)) -> Option<u64> {
    (0..100).find(|&seed| {
        let disk = SimulatedDisk::default();
        plant(&disk);
        play(seed, disk).is_err()
    })
}

#[test]
fn planted_skipping_syncs_is_caught() {
    assert!(first_seed_that_detects(SimulatedDisk::ignore_syncs).is_some());
}

/// A sync that returns before its bytes are durable shows releases before they are committed.
#[test]
fn planted_publishing_before_the_log_is_synced_is_caught() {
    assert!(first_seed_that_detects(SimulatedDisk::sync_late).is_some());
}
