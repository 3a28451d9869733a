//! Injects every fault at every call that changes the disk, in a run of fourteen epochs and again
//! during the recovery. Requirements:
//!
//! - an acknowledged epoch is never lost;
//! - a release that may have been read is never replaced by another one;
//! - epochs have no gaps; checkpoint and replay give the sums of the epochs;
//! - recovering twice equals recovering once;
//! - seen releases are anchored, and no start is refused because of its anchor.
//!
//! Checkpoints are frequent, so segments and lists of entities begin and are removed in every run.
//!
//! Every attempt draws fresh releases, so drawing an epoch twice is detected.

use super::{
    EpochFrame, PublicHeader, PublicReader, RecoveredState, SavedEntities, SavedEntity, SourcePosition,
    StateError, Store, SumRetention,
    anchor::Anchor,
    simulated::{DiskFault, LOSSES, PowerLoss, SimulatedDisk},
    storage::{PUBLIC_LOG, Storage},
    verify::verify_storage,
};
use std::collections::BTreeMap;
use zeroize::Zeroizing;

/// Epochs of a run.
pub(super) const EPOCHS: u64 = 14;

/// The last epochs of commits after which there is a checkpoint of the epoch before. The fifth one
/// begins a list of entities to which the third has appended.
const CHECKPOINTS_AFTER: [u64; 5] = [2, 3, 6, 10, 11];

fn header() -> PublicHeader {
    PublicHeader { parameters: b"clip_norm = 1".to_vec(), private: true }
}

/// Returns the exact sums of an epoch, the same in every attempt.
fn sums(epoch: u64) -> Vec<i128> {
    vec![i128::from(epoch) << (epoch % 100), -i128::from(epoch)]
}

/// Returns the encoder state after `epoch`: here, the running sums.
pub(super) fn encoder_after(epoch: u64) -> Vec<i128> {
    (1..=epoch).fold(vec![0, 0], |state, epoch| add(state, &sums(epoch)))
}

/// Histories of entities: participations and the last epoch.
#[derive(Default, PartialEq)]
pub(super) struct TestHistories(BTreeMap<u128, (u64, u64)>);

impl TestHistories {
    /// After `epoch`, whatever was committed.
    pub(super) fn after(epoch: u64) -> Self {
        let mut histories = Self::default();
        (1..=epoch).for_each(|epoch| histories.advance(epoch, &admitted(epoch)));
        histories
    }

    fn advance(&mut self, epoch: u64, admitted: &[u128]) {
        for &entity in admitted {
            let (participations, last) = self.0.entry(entity).or_default();
            (*participations, *last) = (*participations + 1, epoch);
        }
    }

    fn add(&mut self, saved: &[SavedEntity]) {
        self.0.extend(saved.iter().map(|saved| (saved.entity, (saved.participations, saved.last))));
    }
}

impl SavedEntities for TestHistories {
    fn number(&self) -> u64 {
        self.0.len() as u64
    }

    fn changed_since(&mut self, since: u64) -> Zeroizing<Vec<SavedEntity>> {
        Zeroizing::new(self.all().filter(|saved| saved.last > since).collect())
    }

    fn all(&self) -> Box<dyn Iterator<Item = SavedEntity> + '_> {
        let saved = |(&entity, &(participations, last)): (&u128, &(u64, u64))| SavedEntity {
            entity,
            participations,
            last,
        };
        Box::new(self.0.iter().map(saved))
    }
}

/// Returns the entities that take part in an epoch: of three, two.
fn admitted(epoch: u64) -> Vec<u128> {
    vec![1 << 100, u128::from(epoch % 2) << 60]
}

/// Writes the checkpoint of `epoch`.
pub(super) fn checkpoint(store: &mut Store, epoch: u64) -> Result<(), StateError> {
    let mut histories = TestHistories::after(epoch);
    store.checkpoint_with(epoch, &to_bytes(&encoder_after(epoch)), Some(&mut histories))
}

fn add(mut state: Vec<i128>, sums: &[i128]) -> Vec<i128> {
    state.iter_mut().zip(sums).for_each(|(state, sum)| *state += sum);
    state
}

pub(super) fn to_bytes(state: &[i128]) -> Vec<u8> {
    state.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn anchored_epoch(disk: &SimulatedDisk) -> Result<u64, StateError> {
    let anchor = Anchor::read_from(Box::new(disk.folder("anchor/")), header().fingerprint()?)?;
    Ok(anchor.anchored().map_or(0, |anchored| anchored.head.epoch))
}

/// An outside observer: the acknowledgements and releases that it has seen.
#[derive(Clone, Default)]
pub(super) struct CrashObserver {
    pub(super) acknowledged: u64,
    seen: BTreeMap<u64, Vec<i128>>,
    attempt: i128,
    /// Whether there is an anchor; it is on the same disk, so a power cut strikes both.
    anchored: bool,
}

/// A promise that was broken.
pub(super) type BrokenPromise = String;

impl CrashObserver {
    pub(super) fn new(anchored: bool) -> Self {
        Self { anchored, ..Self::default() }
    }

    fn anchor(&self, disk: &SimulatedDisk) -> Option<Box<dyn Storage>> {
        self.anchored.then(|| Box::new(disk.folder("anchor/")) as Box<dyn Storage>)
    }

    fn recover(&self, disk: &SimulatedDisk) -> Result<(Store, RecoveredState), StateError> {
        Store::recover(Box::new(disk.clone()), self.anchor(disk), &header(), SumRetention::default())
    }

    /// Starts another run, unless the disk fails.
    pub(super) fn start(&mut self, disk: &SimulatedDisk) -> Result<Option<Store>, BrokenPromise> {
        self.attempt += 1;
        let started = self.recover(disk);
        self.read_public_log(disk, EPOCHS)?;
        let Ok((store, _)) = started else { return Ok(None) };
        if store.committed() < self.acknowledged {
            return Err(format!("epoch {} of {} is lost", store.committed(), self.acknowledged));
        }
        self.acknowledged = store.committed();
        Ok(Some(store))
    }

    /// Commits up to `EPOCHS`, one or three epochs a batch, with checkpoints in between, until the
    /// disk fails.
    fn run(&mut self, disk: &SimulatedDisk) -> Result<(), BrokenPromise> {
        let Some(mut store) = self.start(disk)? else { return Ok(()) };
        while store.committed() < EPOCHS {
            let first = store.committed() + 1;
            let last = if first % 4 == 0 { (first + 2).min(EPOCHS) } else { first };
            let batch: Vec<_> = (first..=last).map(|epoch| self.draw(epoch)).collect();
            let failed = store.commit(&batch).is_err();
            self.read_public_log(disk, EPOCHS)?;
            if failed {
                return stays_stopped(&mut store, disk);
            }
            self.acknowledged = last;
            if CHECKPOINTS_AFTER.contains(&last) && checkpoint(&mut store, last - 1).is_err() {
                return stays_stopped(&mut store, disk);
            }
        }
        Ok(())
    }

    pub(super) fn draw(&self, epoch: u64) -> EpochFrame {
        let positions = vec![SourcePosition { partition: 0, offset: 10 * epoch, payload: vec![] }];
        EpochFrame {
            epoch,
            positions,
            sums: sums(epoch).into(),
            values: vec![1000 * self.attempt, epoch.into()],
            admitted: Some(Zeroizing::new(admitted(epoch))),
        }
    }

    /// Reads the public log up to epoch `last`, as any reader can at this moment.
    pub(super) fn read_public_log(&mut self, disk: &SimulatedDisk, last: u64) -> Result<(), BrokenPromise> {
        let Ok(mut reader) = PublicReader::of(Box::new(disk.clone())) else { return Ok(()) };
        for _ in 0..last {
            let Ok(Some(release)) = reader.next_frame() else { break };
            let seen = self.seen.entry(release.epoch).or_insert_with(|| release.values.clone());
            if *seen != release.values {
                return Err(format!("epoch {} was published twice", release.epoch));
            }
        }
        let anchored = match self.anchored {
            true => anchored_epoch(disk).map_err(|error| format!("the anchor: {error}"))?,
            false => u64::MAX,
        };
        match self.seen.keys().next_back() {
            Some(seen) if *seen > anchored => Err(format!("epoch {seen} was shown before it was anchored")),
            _ => Ok(()),
        }
    }

    /// Starts on `disk` without faults. The start must succeed and keep every promise.
    pub(super) fn check_start(&mut self, disk: &SimulatedDisk) -> Result<(), BrokenPromise> {
        let (store, recovered) = self.recover(disk).map_err(|error| format!("refused: {error}"))?;
        let committed = store.committed();
        let published = self.seen.keys().next_back().copied().unwrap_or(0);
        if committed < self.acknowledged.max(published) {
            return Err(format!("epoch {} of {committed} is lost", self.acknowledged.max(published)));
        }
        let offsets: Vec<u64> = recovered.positions.iter().map(|position| position.offset).collect();
        let expected: &[u64] = if committed == 0 { &[] } else { &[10 * committed] };
        (offsets == expected).then_some(()).ok_or("the positions belong to another epoch")?;
        let (state, histories) = replayed(recovered)?;
        (state == encoder_after(committed)).then_some(()).ok_or("the encoder's state differs")?;
        (histories == TestHistories::after(committed))
            .then_some(())
            .ok_or("the histories of entities differ")?;
        drop(store);
        self.read_public_log(disk, EPOCHS)?;
        if self.seen.len() as u64 != committed {
            return Err(format!("{} of {committed} epochs are published", self.seen.len()));
        }
        verify_storage(disk, self.anchor(disk))
            .problem
            .map_or(Ok(()), |problem| Err(format!("verify: {problem}")))
    }

    /// Checks that the remaining state can be started, can be started again with the same result,
    /// and runs to the end.
    fn check(&self, disk: &SimulatedDisk) -> Result<(), BrokenPromise> {
        let mut world = self.clone();
        world.check_start(disk)?;
        let published = disk.content(PUBLIC_LOG);
        world.check_start(disk)?;
        if published != disk.content(PUBLIC_LOG) {
            return Err("recovering twice is not recovering once".into());
        }
        world.run(disk)?;
        (world.acknowledged == EPOCHS).then_some(()).ok_or("the run did not reach its end".into())
    }
}

pub(super) fn stays_stopped(store: &mut Store, disk: &SimulatedDisk) -> Result<(), BrokenPromise> {
    let before = disk.after_restart();
    let frame = EpochFrame {
        epoch: store.committed() + 1,
        positions: vec![],
        sums: vec![].into(),
        values: vec![],
        admitted: None,
    };
    let stopped = matches!(store.commit(&[frame]), Err(StateError::Stopped { .. }))
        && matches!(store.checkpoint(store.committed(), &[]), Err(StateError::Stopped { .. }));
    (stopped && disk.snapshot() == before.snapshot())
        .then_some(())
        .ok_or("the store went on after a failure".into())
}

fn replayed(recovered: RecoveredState) -> Result<(Vec<i128>, TestHistories), BrokenPromise> {
    let (mut state, mut histories) = (vec![0, 0], TestHistories::default());
    if let Some(checkpoint) = &recovered.checkpoint {
        let values = checkpoint.bytes.chunks_exact(16);
        state = values.map(|bytes| i128::from_le_bytes(bytes.try_into().unwrap())).collect();
    }
    for saved in recovered.entities.into_iter().flatten() {
        histories.add(&saved.map_err(|error| error.to_string())?);
    }
    for frame in recovered.replay {
        let frame = frame.map_err(|error| error.to_string())?;
        state = add(state, &frame.sums);
        histories.advance(frame.epoch, frame.admitted.as_deref().map_or(&[][..], |admitted| admitted));
    }
    Ok((state, histories))
}

/// Calls `case` with the number of every call of `work` that `fault` can strike.
fn at_every_call(
    fault: DiskFault,
    start: &SimulatedDisk,
    mut case: impl FnMut(usize, &SimulatedDisk) -> Result<(), BrokenPromise>,
) -> usize {
    for call in 0.. {
        let disk = start.after_restart();
        disk.fail_at(call, fault);
        case(call, &disk).unwrap_or_else(|broken| panic!("{fault:?} at call {call}: {broken}"));
        if !disk.struck() {
            return call;
        }
    }
    unreachable!("the loop ends by returning")
}

#[test]
fn a_power_cut_at_any_call_breaks_no_promise() {
    for anchored in [false, true] {
        let calls = at_every_call(DiskFault::Power, &SimulatedDisk::default(), |_, disk| {
            let mut world = CrashObserver::new(anchored);
            world.run(disk)?;
            LOSSES.iter().try_for_each(|&loss| {
                let found = disk.after_power_cut(loss);
                world.check(&found).map_err(|broken| format!("losing {loss:?}: {broken}"))
            })
        });
        assert!(calls > 100, "{calls} calls: the run is too short to be a test");
    }
}

#[test]
fn a_power_cut_at_any_call_of_the_recovery_breaks_no_promise() {
    at_every_call(DiskFault::Power, &SimulatedDisk::default(), |_, disk| {
        let mut world = CrashObserver::default();
        world.run(disk)?;
        for loss in [PowerLoss::Torn, PowerLoss::EarlierHalf, PowerLoss::Some(4)] {
            at_every_call(DiskFault::Power, &disk.after_power_cut(loss), |_, disk| {
                let recovered = world.recover(disk);
                let mut world = world.clone();
                world.read_public_log(disk, EPOCHS)?;
                drop(recovered);
                LOSSES.iter().try_for_each(|&again| {
                    let found = disk.after_power_cut(again);
                    world
                        .clone()
                        .check_start(&found)
                        .map_err(|broken| format!("{loss:?}, {again:?}: {broken}"))
                })
            });
        }
        Ok(())
    });
}

#[test]
fn a_killed_process_loses_nothing() {
    at_every_call(DiskFault::Power, &SimulatedDisk::default(), |_, disk| {
        let mut world = CrashObserver::new(true);
        world.run(disk)?;
        world.check(&disk.after_restart())
    });
}

#[test]
fn a_full_disk_publishes_nothing_partially_and_resumes_with_space() {
    at_every_call(DiskFault::Full, &SimulatedDisk::default(), |_, disk| {
        let mut world = CrashObserver::new(true);
        world.run(disk)?;
        world.check(&disk.after_restart())?;
        world.check(&disk.after_power_cut(PowerLoss::Everything))
    });
}

/// After a failed sync, bytes may be readable but not durable. The next run reads them, so it must
/// write them again before it publishes; otherwise the next power cut would remove a published
/// epoch.
#[test]
fn a_failed_sync_is_not_trusted_by_the_next_run() {
    at_every_call(DiskFault::Sync, &SimulatedDisk::default(), |_, disk| {
        let mut world = CrashObserver::new(true);
        world.run(disk)?;
        let restarted = disk.after_restart();
        world.check_start(&restarted)?;
        LOSSES.iter().try_for_each(|&loss| world.check(&restarted.after_power_cut(loss)))?;
        world.run(&restarted)?;
        LOSSES.iter().try_for_each(|&loss| world.check(&restarted.after_power_cut(loss)))
    });
}

/// Checks that the tests above can fail: they must detect a disk whose syncs do nothing.
#[test]
fn a_disk_that_lies_about_syncs_is_caught() {
    let disk = SimulatedDisk::default();
    disk.ignore_syncs();
    let mut world = CrashObserver::default();
    world.run(&disk).unwrap();
    assert!(world.check(&disk.after_power_cut(PowerLoss::Everything)).is_err());
}
