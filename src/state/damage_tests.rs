//! Damage at rest: flipped bits, truncated files, and files that are missing, swapped or outdated.
//! Each change is detected or harmless: no published epoch changes or is lost, and no code panics.
//!
//! The tests use a compacted log (the fixtures, which pin the format), the same log with all its
//! segments, and a log with a single segment.

use super::{
    EpochFrame, PublicHeader, PublicReader, ReleaseFrame, SourcePosition, StateError, Store, SumRetention,
    batch::EncodedEpochs,
    format::{FRAME_HEADER_LENGTH, FrameHeader, kind, planted},
    log::{FrameRead, read_frame},
    simulated::SimulatedDisk,
    storage::{CHECKPOINTS, PRIVATE_LOG, PUBLIC_LOG, Storage, segment_name},
    verify::verify_storage,
};
use proptest::prelude::*;

type FileContents = Vec<(String, Vec<u8>)>;

/// The run of the fixtures with all its segments.
const FIXTURES: [(&str, &[u8]); 6] = [
    (PUBLIC_LOG, include_bytes!("../../tests/fixtures/state/public.log")),
    (PRIVATE_LOG, include_bytes!("../../tests/fixtures/state/private-000001.log")),
    ("private-000002.log", include_bytes!("../../tests/fixtures/state/private-000002.log")),
    ("private-000003.log", include_bytes!("../../tests/fixtures/state/private-000003.log")),
    (CHECKPOINTS[0], include_bytes!("../../tests/fixtures/state/checkpoint.a")),
    (CHECKPOINTS[1], include_bytes!("../../tests/fixtures/state/checkpoint.b")),
];

fn whole() -> SimulatedDisk {
    let disk = SimulatedDisk::default();
    FIXTURES.iter().for_each(|(name, bytes)| disk.put(name, bytes));
    disk
}

/// The private log begins after epoch 1.
fn compacted() -> SimulatedDisk {
    let disk = whole();
    disk.lose(PRIVATE_LOG);
    disk
}

/// A log without checkpoints, so in one segment.
fn in_one_segment() -> SimulatedDisk {
    let disk = SimulatedDisk::default();
    write_fixtures(&disk, SumRetention::All, false);
    disk
}

fn files(disk: &SimulatedDisk) -> FileContents {
    let content = |name: String| disk.content(&name).map(|bytes| (name, bytes));
    disk.names().unwrap().into_iter().filter_map(content).collect()
}

fn logs() -> [FileContents; 3] {
    [compacted(), whole(), in_one_segment()].map(|disk| files(&disk))
}

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
        admitted: None,
    }
}

fn open(disk: &SimulatedDisk) -> Result<(Store, super::RecoveredState), StateError> {
    open_with(disk, SumRetention::default())
}

fn open_with(disk: &SimulatedDisk, keep: SumRetention) -> Result<(Store, super::RecoveredState), StateError> {
    Store::recover(Box::new(disk.clone()), None, &header(), keep)
}

/// Writes the log of the fixtures: two generations, five epochs and, if `checkpoints`, checkpoints
/// of epochs 1 and 3.
fn write_fixtures(disk: &SimulatedDisk, keep: SumRetention, checkpoints: bool) {
    let checkpoint = |store: &mut Store, epoch| {
        if checkpoints {
            store.checkpoint(epoch, format!("state after {epoch}").as_bytes()).unwrap();
        }
    };
    let (mut store, _) = open_with(disk, keep).unwrap();
    store.commit(&[frame(1)]).unwrap();
    checkpoint(&mut store, 1);
    store.commit(&[frame(2), frame(3)]).unwrap();
    let (mut store, _) = open_with(disk, keep).unwrap();
    store.commit(&[frame(4)]).unwrap();
    checkpoint(&mut store, 3);
    store.commit(&[frame(5)]).unwrap();
}

fn disk_of(files: &[(String, Vec<u8>)]) -> SimulatedDisk {
    let disk = SimulatedDisk::default();
    files.iter().for_each(|(name, bytes)| disk.put(name, bytes));
    disk
}

fn is_private(name: &str) -> bool {
    name.starts_with("private")
}

fn releases(disk: &SimulatedDisk) -> Vec<ReleaseFrame> {
    let mut reader = PublicReader::of(Box::new(disk.clone())).unwrap();
    std::iter::from_fn(|| reader.next_frame().unwrap()).collect()
}

fn expected_releases() -> Vec<ReleaseFrame> {
    let mut chain = header().fingerprint().unwrap();
    let release = |epoch| {
        let generation = if epoch <= 3 { 1 } else { 2 };
        let mut encoded = EncodedEpochs::default();
        encoded.encode(generation, 0, chain, &[frame(epoch)]).unwrap();
        chain = encoded.links[0];
        ReleaseFrame { generation, epoch, values: frame(epoch).values, chain }
    };
    (1..=5).map(release).collect()
}

/// Checks that a successful start finds everything unchanged.
fn check_intact(disk: &SimulatedDisk) {
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
    assert!(disk.content(PUBLIC_LOG).unwrap() == FIXTURES[0].1);
    assert!(
        verify_storage(disk, None)
            .problem
            .is_none_or(|problem| matches!(problem, StateError::Damaged { .. }))
    );
}

/// Checks that the error names the file or a segment that conflicts with it, and a remedy.
fn check_refused(disk: &SimulatedDisk, name: &str) {
    let error = open(disk).err().unwrap();
    let named = if is_private(name) { "private-" } else { name };
    assert!(error.to_string().contains(named), "{error}");
    assert!(error.to_string().contains("restore"), "{error}");
    assert!(verify_storage(disk, None).problem.is_some());
}

/// Checks that a change from `offset` on is refused if the bytes can't be restored: in the private
/// log, and in the part of the public log that the private log can't rebuild.
fn check_changed(disk: &SimulatedDisk, irreplaceable: usize, name: &str, offset: usize) {
    if is_private(name) || name == PUBLIC_LOG && offset < irreplaceable {
        check_refused(disk, name);
    } else {
        check_intact(disk);
    }
}

/// Length of the public log up to the private log's start.
fn irreplaceable(files: &[(String, Vec<u8>)]) -> usize {
    let disk = disk_of(files);
    if disk.content(PRIVATE_LOG).is_some() {
        return 0;
    }
    let file = disk.read(PUBLIC_LOG).unwrap().unwrap();
    let length = file.length().unwrap();
    let end = |offset| match read_frame(&*file, offset, length).unwrap() {
        FrameRead::Frame(frame) => frame.end(),
        _ => panic!("no frame at {offset}"),
    };
    end(end(16)) as usize
}

#[test]
fn a_run_writes_exactly_the_fixtures() {
    for (keep, fixtures) in [(SumRetention::All, whole()), (SumRetention::default(), compacted())] {
        let disk = SimulatedDisk::default();
        write_fixtures(&disk, keep, true);
        for (name, bytes) in files(&fixtures) {
            assert!(disk.content(&name) == Some(bytes), "{name}");
        }
        assert_eq!(disk.names().unwrap(), fixtures.names().unwrap());
    }
}

#[test]
fn intact_logs_are_read_without_complaint() {
    let expected: [(u64, &[u64]); 3] = [(2, &[1, 3]), (1, &[1, 3]), (1, &[])];
    for (files, (sums_from, checkpoints)) in logs().iter().zip(expected) {
        check_intact(&disk_of(files));
        let report = verify_storage(&disk_of(files), None);
        assert!(report.problem.is_none(), "{:?}", report.problem);
        assert_eq!((report.generations, report.committed, report.published), (2, 5, 5));
        assert_eq!((&report.checkpoints[..], report.uncommitted_bytes), (checkpoints, 0));
        assert_eq!(report.chain, expected_releases()[4].chain);
        assert_eq!(report.sums_from, sums_from);
        assert_eq!(PublicReader::of(Box::new(disk_of(files))).unwrap().header(), &header());
    }
}

#[test]
#[ignore = "slow"]
fn every_flipped_bit_is_detected_or_repaired() {
    for files in logs() {
        let irreplaceable = irreplaceable(&files);
        for (name, bytes) in &files {
            for bit in 0..8 * bytes.len() {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                let disk = disk_of(&files);
                disk.put(name, &bad);
                assert!(verify_storage(&disk, None).problem.is_some(), "{name}, bit {bit}");
                check_changed(&disk, irreplaceable, name, bit / 8);
            }
        }
    }
}

#[test]
fn every_cut_is_detected_or_repaired() {
    for files in logs() {
        let irreplaceable = irreplaceable(&files);
        for (name, bytes) in &files {
            for length in 0..bytes.len() {
                let disk = disk_of(&files);
                disk.put(name, &bytes[..length]);
                check_changed(&disk, irreplaceable, name, length);
            }
        }
    }
}

/// The last run committed no epoch, so its generation frame is at the tail and may be lost.
#[test]
fn a_lost_generation_frame_is_harmless() {
    for files in logs() {
        let disk = disk_of(&files);
        drop(open(&disk).unwrap());
        let (name, bytes) = files.iter().filter(|(name, _)| is_private(name)).max().unwrap();
        let log = disk.content(name).unwrap();
        assert!(log.len() > bytes.len());
        for length in bytes.len()..log.len() {
            let disk = disk_of(&files);
            disk.put(name, &log[..length]);
            check_intact(&disk);
        }
    }
}

#[test]
fn damage_before_the_last_batch_is_detected_without_an_anchor() {
    let bytes = in_one_segment().content(PRIVATE_LOG).unwrap();
    let mut last = EncodedEpochs::default();
    last.encode(2, 0, header().fingerprint().unwrap(), &[frame(5)]).unwrap();
    for byte in 0..bytes.len() - last.private.len() {
        let mut bad = bytes.clone();
        bad[byte] ^= 0x10;
        let disk = SimulatedDisk::default();
        disk.put(PRIVATE_LOG, &bad);
        match open(&disk).err() {
            Some(StateError::Damaged { offset, .. }) => assert!(offset <= byte as u64, "byte {byte}"),
            other => panic!("byte {byte}: {other:?}"),
        }
    }
}

fn without(files: &[(String, Vec<u8>)], lost: &[&str]) -> SimulatedDisk {
    let disk = disk_of(files);
    lost.iter().for_each(|name| disk.lose(name));
    disk
}

#[test]
fn missing_files_are_mended_or_refused() {
    let [compacted, whole, single] = logs();
    let segments = [1, 2, 3].map(segment_name);
    let [first, second, third] = segments.each_ref().map(String::as_str);
    for lost in CHECKPOINTS {
        check_intact(&without(&compacted, &[lost]));
    }
    for lost in [&[PUBLIC_LOG][..], &CHECKPOINTS[..1], &CHECKPOINTS[1..], &CHECKPOINTS] {
        check_intact(&without(&whole, lost));
    }
    check_intact(&without(&single, &[PUBLIC_LOG]));
    let refused = |files: &FileContents, lost: &[&str]| open(&without(files, lost)).err().unwrap();
    assert!(matches!(refused(&single, &[PRIVATE_LOG]), StateError::PrivateLogLost { .. }));
    assert!(
        matches!(refused(&whole, &[PUBLIC_LOG, first, second, third]), StateError::PrivateLogLost { .. }),
        "checkpoints are witnesses too"
    );
    assert!(matches!(refused(&compacted, &[PUBLIC_LOG]), StateError::Damaged { offset: 0, .. }));
    assert!(matches!(refused(&compacted, &CHECKPOINTS), StateError::CheckpointLost { epoch: 1, .. }));
    assert!(matches!(refused(&compacted, &[second]), StateError::CheckpointLost { epoch: 4, .. }));
    assert!(matches!(refused(&compacted, &[third]), StateError::RolledBack { committed: 4, .. }));
    assert!(matches!(refused(&compacted, &[second, third]), StateError::PrivateLogLost { .. }));
}

fn replace_private_log(disk: &SimulatedDisk, other: &SimulatedDisk) {
    let private_names =
        |disk: &SimulatedDisk| disk.names().unwrap().into_iter().filter(|name| is_private(name));
    private_names(disk).for_each(|name| disk.lose(&name));
    private_names(other).for_each(|name| disk.put(&name, &other.content(&name).unwrap()));
}

#[test]
fn a_segment_that_is_missing_between_others_is_named() {
    let disk = whole();
    disk.lose(&segment_name(2));
    match open(&disk).err() {
        Some(StateError::PrivateLogLost { path, .. }) => assert!(path.ends_with(segment_name(2))),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_segment_under_another_number_is_refused() {
    let disk = whole();
    disk.put(&segment_name(3), &disk.content(&segment_name(2)).unwrap());
    assert!(matches!(open(&disk), Err(StateError::Disorder { field: "segment", found: 2, expected: 3, .. })));
}

#[test]
fn yesterdays_private_log_is_refused() {
    let yesterday = SimulatedDisk::default();
    let (mut store, _) = open(&yesterday).unwrap();
    store.commit(&[frame(1), frame(2)]).unwrap();
    let check = |lost: &[&str], witness: &str, epoch: u64| {
        let disk = whole();
        replace_private_log(&disk, &yesterday);
        lost.iter().for_each(|name| disk.lose(name));
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

fn other_run() -> SimulatedDisk {
    let other = SimulatedDisk::default();
    let (mut store, _) = open(&other).unwrap();
    let noisier = |epoch| EpochFrame { values: vec![99], ..frame(epoch) };
    store.commit(&(1..=6).map(noisier).collect::<Vec<_>>()).unwrap();
    store.checkpoint(6, b"state").unwrap();
    other
}

#[test]
fn files_of_another_run_are_refused() {
    let other = other_run();
    let disk = whole();
    disk.put(PUBLIC_LOG, &other.content(PUBLIC_LOG).unwrap());
    assert!(matches!(open(&disk), Err(StateError::Conflict { epoch: 1, .. })));
    let disk = compacted();
    disk.put(PUBLIC_LOG, &other.content(PUBLIC_LOG).unwrap());
    assert!(
        matches!(open(&disk), Err(StateError::Conflict { epoch: 1, .. })),
        "where the private log begins"
    );
    let disk = whole();
    replace_private_log(&disk, &other);
    assert!(matches!(open(&disk), Err(StateError::Conflict { epoch: 1, .. })));
    disk.lose(PUBLIC_LOG);
    assert!(matches!(open(&disk), Err(StateError::ForeignCheckpoint { epoch: 1, .. })));
    let disk = whole();
    disk.put(&segment_name(2), &other.content(&segment_name(2)).unwrap());
    assert!(matches!(open(&disk), Err(StateError::Disorder { .. })));
}

/// Checksums can be recomputed after a change, but the chain then shows another history.
#[test]
fn a_release_that_was_rewritten_with_its_checksums_breaks_the_chain() {
    let disk = compacted();
    let mut log = disk.content(PUBLIC_LOG).unwrap();
    let start = irreplaceable(&files(&compacted()));
    let header: &[u8; FRAME_HEADER_LENGTH] = log[start..].first_chunk().unwrap();
    let payload =
        start + FRAME_HEADER_LENGTH..start + FrameHeader::from_bytes(header).unwrap().frame_length() as usize;
    log[payload.end - 33] ^= 1;
    let header = FrameHeader::of(kind::RELEASE, 0, &log[payload.clone()]).to_bytes();
    log[start..payload.start].copy_from_slice(&header);
    disk.put(PUBLIC_LOG, &log);
    let mut reader = PublicReader::of(Box::new(disk.clone())).unwrap();
    assert_eq!(reader.next_frame().unwrap().map(|release| release.epoch), Some(1));
    assert!(matches!(reader.next_frame(), Err(StateError::Forked { epoch: 2, .. })));
    assert!(matches!(open(&disk), Err(StateError::Conflict { epoch: 2, .. })));
}

/// A directory that was restored from a copy and then continued is consistent. A reader that has
/// read more epochs detects it.
#[test]
fn a_reader_that_saw_more_refuses_a_restored_directory() {
    let disk = compacted();
    let mut reader = PublicReader::of(Box::new(disk.clone())).unwrap();
    let (mut store, _) = open(&disk).unwrap();
    let copy = disk.after_restart();
    let drawn = |epoch, noise| EpochFrame { epoch, values: vec![noise; 3], ..frame(1) };
    store.commit(&[drawn(6, 1), drawn(7, 1)]).unwrap();
    assert_eq!(std::iter::from_fn(|| reader.next_frame().unwrap()).count(), 7);
    disk.turn_into(&copy);
    assert!(matches!(reader.next_frame(), Err(StateError::WentBack { epoch: 7, .. })));
    let (mut store, _) = open(&disk).unwrap();
    store.commit(&[drawn(6, 2), drawn(7, 2)]).unwrap();
    assert!(reader.next_frame().unwrap().is_none(), "as long as before: there is nothing to compare");
    store.commit(&[drawn(8, 1)]).unwrap();
    assert!(matches!(reader.next_frame(), Err(StateError::Forked { epoch: 8, .. })));
}

#[test]
fn other_parameters_another_version_and_another_role_are_refused() {
    let others = PublicHeader { private: true, ..header() };
    for files in logs() {
        let refused = Store::recover(Box::new(disk_of(&files)), None, &others, SumRetention::default()).err();
        assert!(matches!(refused, Some(StateError::HeaderDiffers { .. })));
    }
    let disk = in_one_segment();
    let log = disk.content(PRIVATE_LOG).unwrap();
    disk.put(PRIVATE_LOG, &disk.content(PUBLIC_LOG).unwrap());
    assert!(matches!(open(&disk), Err(StateError::Damaged { offset: 0, .. })));
    let mut newer = log;
    newer[8] = 2;
    let checksum = crc32c::crc32c(&newer[..12]).to_le_bytes();
    newer[12..16].copy_from_slice(&checksum);
    disk.put(PRIVATE_LOG, &newer);
    assert!(matches!(open(&disk), Err(StateError::UnknownVersion { found: 2, supported: 1, .. })));
}

proptest! {
    /// Overwrites bytes arbitrarily, in one file or in all. A start is refused, or no published
    /// value has changed.
    #[test]
    fn arbitrary_damage_never_changes_a_release(
        log in 0usize..3,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<[u8; 3]>()), 1..6),
    ) {
        let [mut files, ..] = { let mut logs = logs(); logs.rotate_left(log); logs };
        for (file, at, bytes) in changes {
            let file = file.index(files.len());
            let file = &mut files[file].1;
            let at = at.index(file.len() - bytes.len());
            file[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let disk = disk_of(&files);
        if open(&disk).is_ok() {
            let releases = releases(&disk);
            prop_assert_eq!(&releases[..], &expected_releases()[..releases.len()]);
        }
    }
}

/// Checks that the tests above can fail: without checksums some flipped bit changes sums
/// undetected.
#[test]
fn planted_skipping_checksums_is_caught() {
    let files = files(&in_one_segment());
    let (name, bytes) = files.iter().find(|(name, _)| is_private(name)).unwrap();
    planted::SKIP_CHECKSUMS.set(true);
    let silently_other = (0..8 * bytes.len()).any(|bit| {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let disk = disk_of(&files);
        disk.put(name, &bad);
        let Ok((_, recovered)) = open_with(&disk, SumRetention::All) else { return false };
        let frames: Vec<_> = recovered.replay.map_while(Result::ok).collect();
        frames.iter().any(|found| found.sums != frame(found.epoch).sums)
    });
    assert!(silently_other);
}
