//! Lists of entities: their size, damage to them, and lists of other checkpoints.

use super::{
    EpochFrame, PublicHeader, SavedEntities, SavedEntity, StateError, Store, SumRetention,
    entities::list_name,
    simulated::SimulatedDisk,
    storage::{CHECKPOINTS, Storage},
    verify::verify_storage,
};
use std::collections::BTreeMap;
use zeroize::Zeroizing;

/// Entities by hash: participations and the last epoch.
type Histories = BTreeMap<u128, (u64, u64)>;

impl SavedEntities for Histories {
    fn number(&self) -> u64 {
        self.len() as u64
    }

    fn changed_since(&mut self, since: u64) -> Zeroizing<Vec<SavedEntity>> {
        Zeroizing::new(self.all().filter(|saved| saved.last > since).collect())
    }

    fn all(&self) -> Box<dyn Iterator<Item = SavedEntity> + '_> {
        Box::new(self.iter().map(|(&entity, &(participations, last))| SavedEntity {
            entity,
            participations,
            last,
        }))
    }
}

fn open(disk: &SimulatedDisk, keep: SumRetention) -> Result<(Store, super::RecoveredState), StateError> {
    let header = PublicHeader { parameters: b"k = 9".to_vec(), private: true };
    Store::recover(Box::new(disk.clone()), None, &header, keep)
}

/// A run in which some entities take part in each epoch, with a checkpoint of each.
struct Run {
    disk: SimulatedDisk,
    store: Store,
    histories: Histories,
}

impl Run {
    fn begin(keep: SumRetention) -> Self {
        let disk = SimulatedDisk::default();
        let (store, _) = open(&disk, keep).unwrap();
        Self { disk, store, histories: Histories::new() }
    }

    fn epoch(&mut self, admitted: Vec<u128>) {
        let epoch = self.store.committed() + 1;
        for &entity in &admitted {
            let (participations, last) = self.histories.entry(entity).or_default();
            (*participations, *last) = (*participations + 1, epoch);
        }
        let frame = EpochFrame {
            epoch,
            positions: vec![],
            sums: vec![epoch.into()].into(),
            values: vec![epoch.into()],
            admitted: Some(Zeroizing::new(admitted)),
        };
        self.store.commit(&[frame]).unwrap();
        self.store.checkpoint_with(epoch, b"state", Some(&mut self.histories)).unwrap();
    }

    /// The lists on disk, oldest first, with their lengths.
    fn lists(&self) -> Vec<(String, usize)> {
        let names = self.disk.names().unwrap().into_iter().filter(|name| name.ends_with(".list"));
        names.map(|name| (name.clone(), self.disk.content(&name).unwrap().len())).collect()
    }
}

/// Checks that a start succeeds and finds these histories.
fn check_found(disk: &SimulatedDisk, keep: SumRetention, expected: &Histories) {
    let (_, recovered) = open(disk, keep).unwrap();
    let mut found = Histories::new();
    for saved in recovered.entities.into_iter().flatten() {
        found.extend(saved.unwrap().iter().map(|saved| (saved.entity, (saved.participations, saved.last))));
    }
    for frame in recovered.replay {
        let frame = frame.unwrap();
        for &entity in frame.admitted.unwrap().iter() {
            let (participations, last) = found.entry(entity).or_default();
            (*participations, *last) = (*participations + 1, frame.epoch);
        }
    }
    assert!(found == *expected, "other histories");
}

/// A run whose lists have been appended to and begun anew.
fn small_run(keep: SumRetention) -> Run {
    let mut run = Run::begin(keep);
    (0..20_u128).for_each(|epoch| run.epoch(vec![epoch % 6, 7 + epoch % 3]));
    run
}

#[test]
fn a_checkpoint_costs_bytes_for_what_changed() {
    let mut run = Run::begin(SumRetention::default());
    let everyone: Vec<u128> = (0..1000).map(|entity| entity << 100).collect();
    run.epoch(everyone.clone());
    // The other checkpoint has a list of its own.
    run.epoch(vec![]);
    let whole = run.lists()[0].1;
    assert!(whole < 1000 * 18 + 250 * 130, "{whole} bytes");
    let mut begun = 0;
    for epoch in 0..400 {
        let before = run.lists();
        run.epoch(everyone[7 * epoch % 900..][..10].to_vec());
        let after = run.lists();
        assert_eq!(after.len(), 2, "{after:?}");
        if after.iter().map(|(name, _)| name).eq(before.iter().map(|(name, _)| name)) {
            // Of two epochs, at most 20 entities in frames of four.
            let grown = after.iter().map(|(_, length)| length).sum::<usize>()
                - before.iter().map(|(_, length)| length).sum::<usize>();
            assert!((10 * 18..20 * 18 + 6 * 130).contains(&grown), "{grown} bytes");
        } else {
            begun += 1;
        }
        assert!(after.iter().all(|(_, length)| *length < 5 * whole / 2), "{after:?}");
    }
    // After 1000 / 20 appended frames each.
    assert!((6..=8).contains(&begun), "{begun} lists were begun");
    check_found(&run.disk, SumRetention::default(), &run.histories);
    assert!(verify_storage(&run.disk, None).problem.is_none());
}

#[test]
fn any_change_to_one_list_is_detected_and_the_other_checkpoint_is_used() {
    let run = small_run(SumRetention::default());
    let lists = run.lists();
    assert!(lists[0].0 > list_name(2), "the first lists were replaced");
    let check = |name: &str, changed: Option<&[u8]>| {
        let disk = run.disk.after_restart();
        match changed {
            Some(bytes) => disk.put(name, bytes),
            None => disk.lose(name),
        }
        let problem = verify_storage(&disk, None).problem;
        assert!(problem.is_some_and(|problem| problem.to_string().contains(name)), "{name}");
        check_found(&disk, SumRetention::default(), &run.histories);
    };
    for (name, length) in &lists {
        let bytes = run.disk.content(name).unwrap();
        for byte in 0..*length {
            let mut bad = bytes.clone();
            bad[byte] ^= 1 << (byte % 8);
            check(name, Some(&bad));
            check(name, Some(&bytes[..byte]));
        }
        check(name, None);
    }
    // The list of one checkpoint under the name of the other.
    let other = run.disk.content(&lists[1].0).unwrap();
    check(&lists[0].0, Some(&other));
}

#[test]
fn bytes_behind_a_list_are_overwritten() {
    let mut run = small_run(SumRetention::default());
    for (name, _) in run.lists() {
        let bytes = run.disk.content(&name).unwrap();
        run.disk.put(&name, &[&bytes[..], &[0xff; 5000]].concat());
    }
    drop(run.store);
    check_found(&run.disk, SumRetention::default(), &run.histories);
    (run.store, _) = open(&run.disk, SumRetention::default()).unwrap();
    run.epoch(vec![3]);
    run.epoch(vec![4, 1000]);
    assert!(verify_storage(&run.disk, None).problem.is_none());
    check_found(&run.disk, SumRetention::default(), &run.histories);
}

#[test]
fn damage_to_both_lists_is_refused_unless_the_log_is_whole() {
    for keep in [SumRetention::default(), SumRetention::All] {
        let run = small_run(keep);
        for (name, length) in run.lists() {
            let mut bytes = run.disk.content(&name).unwrap();
            bytes[length - 1] ^= 1;
            run.disk.put(&name, &bytes);
        }
        drop(run.store);
        match keep {
            SumRetention::All => check_found(&run.disk, keep, &run.histories),
            _ => assert!(matches!(open(&run.disk, keep), Err(StateError::CheckpointLost { .. }))),
        }
    }
}

/// A checkpoint from before the log can't be checked: it may be of another log. So nothing is
/// appended to its list.
#[test]
fn the_list_of_a_checkpoint_that_may_be_foreign_is_not_continued() {
    let mut foreign = Run::begin(SumRetention::default());
    (0..9).for_each(|epoch| foreign.epoch(vec![1000 + epoch]));
    let mut run = small_run(SumRetention::default());
    let list = list_name(1);
    assert!(run.lists().iter().all(|(name, _)| *name != list));
    for name in [CHECKPOINTS[0], &list] {
        run.disk.put(name, &foreign.disk.content(name).unwrap());
    }
    (run.store, _) = open(&run.disk, SumRetention::default()).unwrap();
    run.epoch(vec![2]);
    check_found(&run.disk, SumRetention::default(), &run.histories);
    assert!(run.lists().iter().all(|(name, _)| *name != list));
}

#[test]
fn a_list_has_these_bytes() {
    let mut run = Run::begin(SumRetention::default());
    run.epoch(vec![7, 5]);
    run.epoch(vec![5]);
    let bytes = run.disk.content(&list_name(2)).unwrap();
    let number = |number: u64| number.to_le_bytes();
    let entities = [5_u128.to_le_bytes(), 7_u128.to_le_bytes()].concat();
    let before = [&number(2)[..]].concat();
    let after = [
        &number(0)[..],
        &number(32),
        &entities,
        // The participations, and the epochs since the last one.
        &number(3),
        &[1, 2, 1],
        &number(3),
        &[1, 0, 1],
    ]
    .concat();
    let payload = &bytes[40..];
    assert_eq!((bytes[10], bytes[20], payload.len()), (9, 13, 8 + 32 + after.len()));
    assert!(payload.starts_with(&before) && payload.ends_with(&after));
}
