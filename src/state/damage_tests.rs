//! Files that were changed at rest: bits flipped, lengths cut, files missing, swapped, or from another day. Each is
//! found, or does no harm: never another value for a published epoch, never a lost one, never a panic.
//!
//! The files are the fixtures of format version 1, so these tests also keep that version readable.

use super::{
    EpochFrame, PublicHeader, PublicReader, ReleaseFrame, SourcePosition, StateError, Store,
    frames::EncodedEpoch,
    simulated::Disk,
    storage::{CHECKPOINTS, PRIVATE_LOG, PUBLIC_LOG},
    verify::verify_storage,
};
use proptest::prelude::*;

const FIXTURES: [(&str, &[u8]); 4] = [
    (PRIVATE_LOG, include_bytes!("../../tests/fixtures/state-v1/private-000001.log")),
    (PUBLIC_LOG, include_bytes!("../../tests/fixtures/state-v1/public.log")),
    (CHECKPOINTS[0], include_bytes!("../../tests/fixtures/state-v1/checkpoint.a")),
    (CHECKPOINTS[1], include_bytes!("../../tests/fixtures/state-v1/checkpoint.b")),
];

fn header() -> PublicHeader {
    PublicHeader { parameters: b"clip_norm = 1\n".to_vec(), private: false }
}

fn frame(epoch: u64) -> EpochFrame {
    let wide = i128::from(epoch) << (20 * epoch);
    EpochFrame {
        epoch,
        positions: vec![SourcePosition { partition: 1, offset: 100 * epoch, payload: vec![epoch as u8; 2] }],
        sums: vec![wide, -1].into(),
        values: vec![-wide, 7, 0],
    }
}

fn open(disk: &Disk) -> Result<(Store, super::Recovered), StateError> {
    Store::recover(Box::new(disk.clone()), &header())
}

/// The run that the fixtures hold: two generations, five epochs, checkpoints of epochs 1 and 3.
fn write_fixtures(disk: &Disk) {
    let (mut store, _) = open(disk).unwrap();
    store.commit(&[frame(1)]).unwrap();
    store.checkpoint(1, b"state after 1").unwrap();
    store.commit(&[frame(2), frame(3)]).unwrap();
    let (mut store, _) = open(disk).unwrap();
    store.commit(&[frame(4)]).unwrap();
    store.checkpoint(3, b"state after 3").unwrap();
    store.commit(&[frame(5)]).unwrap();
}

fn fixtures() -> Disk {
    let disk = Disk::default();
    FIXTURES.iter().for_each(|(name, bytes)| disk.put(name, bytes));
    disk
}

fn releases(disk: &Disk) -> Vec<ReleaseFrame> {
    let mut reader = PublicReader::of(disk).unwrap();
    std::iter::from_fn(|| reader.next_frame().unwrap()).collect()
}

fn expected_releases() -> Vec<ReleaseFrame> {
    let generation = |epoch| if epoch <= 3 { 1 } else { 2 };
    (1..=5)
        .map(|epoch| ReleaseFrame { generation: generation(epoch), epoch, values: frame(epoch).values })
        .collect()
}

/// A start that succeeds must find everything as it was.
fn check_intact(disk: &Disk) {
    let (store, recovered) = open(disk).unwrap();
    assert_eq!(store.committed(), 5);
    let from = recovered.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.epoch);
    if let Some(checkpoint) = recovered.checkpoint {
        assert_eq!(*checkpoint.bytes, format!("state after {from}").into_bytes());
    }
    let replayed: Vec<EpochFrame> = recovered.replay.map(Result::unwrap).collect();
    assert!(replayed == (from + 1..=5).map(frame).collect::<Vec<_>>());
    assert!(recovered.positions == frame(5).positions);
    assert_eq!(releases(disk), expected_releases());
    assert!(disk.content(PUBLIC_LOG).unwrap() == FIXTURES[1].1);
    assert!(verify_storage(disk).problem.is_none_or(|problem| matches!(problem, StateError::Damaged { .. })));
}

/// The error must name the file and how to mend it, whatever the file is.
fn check_refused(disk: &Disk, name: &str) {
    let error = open(disk).err().unwrap();
    assert!(error.to_string().contains(name), "{error}");
    assert!(error.to_string().contains("restore"), "{error}");
    assert!(verify_storage(disk).problem.is_some());
}

#[test]
fn a_run_writes_exactly_the_fixtures() {
    let disk = Disk::default();
    write_fixtures(&disk);
    for (name, bytes) in FIXTURES {
        assert!(disk.content(name).as_deref() == Some(bytes), "{name}");
    }
}

#[test]
fn the_fixtures_are_read_and_found_in_order() {
    check_intact(&fixtures());
    let report = verify_storage(&fixtures());
    assert!(report.problem.is_none(), "{:?}", report.problem);
    assert_eq!((report.generations, report.committed, report.published), (2, 5, 5));
    assert_eq!((report.checkpoints, report.uncommitted_bytes), (vec![1, 3], 0));
    assert_eq!(PublicReader::of(&fixtures()).unwrap().header(), &header());
}

#[test]
fn every_flipped_bit_is_found_or_mended() {
    for (name, bytes) in FIXTURES {
        for bit in 0..8 * bytes.len() {
            let mut bad = bytes.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            let disk = fixtures();
            disk.put(name, &bad);
            assert!(verify_storage(&disk).problem.is_some(), "{name}, bit {bit}");
            if name == PRIVATE_LOG { check_refused(&disk, name) } else { check_intact(&disk) }
        }
    }
}

#[test]
fn every_cut_is_found_or_mended() {
    for (name, bytes) in FIXTURES {
        for length in 0..bytes.len() {
            let disk = fixtures();
            disk.put(name, &bytes[..length]);
            if name == PRIVATE_LOG { check_refused(&disk, name) } else { check_intact(&disk) }
        }
    }
}

/// The last run had committed nothing: its generation frame is the tail. Losing it loses nothing.
#[test]
fn a_lost_generation_frame_is_harmless() {
    let disk = fixtures();
    drop(open(&disk).unwrap());
    let log = disk.content(PRIVATE_LOG).unwrap();
    for length in FIXTURES[0].1.len()..log.len() {
        let disk = fixtures();
        disk.put(PRIVATE_LOG, &log[..length]);
        check_intact(&disk);
    }
}

#[test]
fn damage_before_the_last_batch_is_found_without_any_witness() {
    let bytes = FIXTURES[0].1;
    let last_batch = bytes.len() - EncodedEpoch::new(2, 0, &frame(5)).unwrap().private.len();
    for byte in 0..last_batch {
        let mut bad = bytes.to_vec();
        bad[byte] ^= 0x10;
        let disk = Disk::default();
        disk.put(PRIVATE_LOG, &bad);
        match open(&disk).err() {
            Some(StateError::Damaged { offset, .. }) => assert!(offset <= byte as u64, "byte {byte}"),
            other => panic!("byte {byte}: {other:?}"),
        }
    }
}

#[test]
fn missing_files_are_mended_or_refused() {
    for name in [PUBLIC_LOG, CHECKPOINTS[0], CHECKPOINTS[1]] {
        let disk = fixtures();
        disk.remove(name);
        check_intact(&disk);
    }
    let disk = fixtures();
    disk.remove(PRIVATE_LOG);
    assert!(matches!(open(&disk), Err(StateError::PrivateLogLost { .. })));
    disk.remove(PUBLIC_LOG);
    assert!(matches!(open(&disk), Err(StateError::PrivateLogLost { .. })), "checkpoints are witnesses too");
}

#[test]
fn yesterdays_private_log_is_refused() {
    let yesterday = Disk::default();
    let (mut store, _) = open(&yesterday).unwrap();
    store.commit(&[frame(1), frame(2)]).unwrap();
    let check = |removed: &[&str], witness: &str, epoch: u64| {
        let disk = fixtures();
        disk.put(PRIVATE_LOG, &yesterday.content(PRIVATE_LOG).unwrap());
        removed.iter().for_each(|name| disk.remove(name));
        match open(&disk).err() {
            Some(StateError::RolledBack { committed: 2, witness: found, witnessed, .. }) => {
                assert!(found.ends_with(witness) && witnessed == epoch);
            }
            other => panic!("{other:?}"),
        }
    };
    check(&[], PUBLIC_LOG, 5);
    check(&[PUBLIC_LOG], CHECKPOINTS[1], 3);
}

#[test]
fn files_of_another_run_are_refused() {
    let other = Disk::default();
    let (mut store, _) = open(&other).unwrap();
    let noisier = |epoch| EpochFrame { values: vec![99], ..frame(epoch) };
    store.commit(&(1..=6).map(noisier).collect::<Vec<_>>()).unwrap();
    store.checkpoint(6, b"state").unwrap();
    let disk = fixtures();
    disk.put(PUBLIC_LOG, &other.content(PUBLIC_LOG).unwrap());
    assert!(matches!(open(&disk), Err(StateError::Conflict { epoch: 1, .. })));
    let disk = fixtures();
    disk.put(PRIVATE_LOG, &other.content(PRIVATE_LOG).unwrap());
    assert!(matches!(open(&disk), Err(StateError::Conflict { epoch: 1, .. })));
    disk.remove(PUBLIC_LOG);
    assert!(matches!(open(&disk), Err(StateError::ForeignCheckpoint { epoch: 1, .. })));
}

#[test]
fn other_parameters_another_version_and_another_role_are_refused() {
    let others = PublicHeader { private: true, ..header() };
    let refused = Store::recover(Box::new(fixtures()), &others).err();
    assert!(matches!(refused, Some(StateError::HeaderDiffers { .. })));
    let disk = fixtures();
    disk.put(PRIVATE_LOG, FIXTURES[1].1);
    assert!(matches!(open(&disk), Err(StateError::Damaged { offset: 0, .. })));
    let mut newer = FIXTURES[0].1.to_vec();
    newer[8] = 2;
    let checksum = crc32c::crc32c(&newer[..12]).to_le_bytes();
    newer[12..16].copy_from_slice(&checksum);
    disk.put(PRIVATE_LOG, &newer);
    assert!(matches!(open(&disk), Err(StateError::UnknownVersion { found: 2, supported: 1, .. })));
}

proptest! {
    /// Arbitrary overwriting, in one file or in all: a start either is refused or changes no published value.
    #[test]
    fn arbitrary_damage_never_changes_a_release(
        changes in proptest::collection::vec((0usize..4, any::<prop::sample::Index>(), any::<[u8; 3]>()), 1..6),
    ) {
        let mut files = FIXTURES.map(|(_, bytes)| bytes.to_vec());
        for (file, at, bytes) in changes {
            let at = at.index(files[file].len() - bytes.len());
            files[file][at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let disk = Disk::default();
        FIXTURES.iter().zip(&files).for_each(|((name, _), bytes)| disk.put(name, bytes));
        if open(&disk).is_ok() {
            let releases = releases(&disk);
            prop_assert_eq!(&releases[..], &expected_releases()[..releases.len()]);
        }
    }
}
