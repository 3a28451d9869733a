//! Tests the store on a real directory: accepted and refused inputs, and a reader that follows a
//! writer.

use super::{EpochFrame, PublicHeader, PublicReader, StateError, Store, verify};
use std::{path::PathBuf, thread};
use tempfile::TempDir;

fn header() -> PublicHeader {
    PublicHeader { parameters: b"horizon = 100".to_vec(), private: true }
}

fn frame(epoch: u64) -> EpochFrame {
    let value = i128::from(epoch);
    EpochFrame {
        epoch,
        positions: vec![],
        sums: vec![value; 3].into(),
        values: vec![-value; 500],
        admitted: None,
    }
}

/// Returns a path for a state directory. Dropping the first element removes it.
fn new_state() -> (TempDir, PathBuf) {
    let outer = tempfile::tempdir().unwrap();
    let path = outer.path().join("state");
    (outer, path)
}

#[test]
fn epochs_are_committed_once_in_order_without_gaps() {
    let (_outer, path) = new_state();
    let (mut store, _) = Store::open(&path, &header()).unwrap();
    let refused = |store: &mut Store, epochs: &[u64]| {
        let frames: Vec<_> = epochs.iter().map(|&epoch| frame(epoch)).collect();
        assert!(matches!(store.commit(&frames), Err(StateError::WrongEpoch { .. })), "{epochs:?}");
    };
    refused(&mut store, &[0]);
    refused(&mut store, &[2]);
    store.commit(&[frame(1), frame(2)]).unwrap();
    for epochs in [&[1][..], &[2], &[4], &[3, 5], &[3, 3], &[u64::MAX]] {
        refused(&mut store, epochs);
    }
    assert_eq!(store.committed(), 2, "a refused commit writes nothing, not even its good epochs");
    store.commit::<EpochFrame>(&[]).unwrap();
    store.commit(&[frame(3)]).unwrap();
    let report = verify(&path).unwrap();
    assert_eq!((report.committed, report.published, report.problem.is_none()), (3, 3, true));
}

#[test]
fn checkpoints_must_be_of_committed_epochs_in_ascending_order() {
    let (_outer, path) = new_state();
    let (mut store, _) = Store::open(&path, &header()).unwrap();
    store.commit(&(1..=5).map(frame).collect::<Vec<_>>()).unwrap();
    let refused = |store: &mut Store, epoch| {
        assert!(matches!(store.checkpoint(epoch, b""), Err(StateError::WrongEpoch { .. })), "{epoch}");
    };
    refused(&mut store, 0);
    refused(&mut store, 6);
    store.checkpoint(3, b"three").unwrap();
    refused(&mut store, 3);
    refused(&mut store, 2);
    store.checkpoint(4, b"four").unwrap();
    drop(store);
    let (mut store, recovered) = Store::open(&path, &header()).unwrap();
    assert_eq!(verify(&path).unwrap().checkpoints, [3, 4]);
    assert!(recovered.checkpoint.is_some_and(|checkpoint| *checkpoint.bytes == b"four"));
    refused(&mut store, 4);
    store.checkpoint(5, b"five").unwrap();
    assert_eq!(verify(&path).unwrap().checkpoints, [4, 5], "the older one was replaced");
}

#[test]
fn a_second_run_is_refused_and_a_missing_log_is_named() {
    let (outer, path) = new_state();
    let _store = Store::open(&path, &header()).unwrap();
    assert!(matches!(Store::open(&path, &header()), Err(StateError::Locked { .. })));
    assert!(matches!(PublicReader::open(outer.path()), Err(StateError::Missing { .. })));
    assert!(matches!(verify(outer.path()).unwrap().problem, Some(StateError::Missing { .. })));
    assert!(matches!(PublicReader::open(outer.path().join("none")), Err(StateError::Missing { .. })));
}

#[test]
fn a_reader_follows_a_writer() {
    let (_outer, path) = new_state();
    let (mut store, _) = Store::open(&path, &header()).unwrap();
    let mut reader = PublicReader::open(&path).unwrap();
    let writer = thread::spawn(move || {
        for epoch in 1..=300 {
            store.commit(&[frame(epoch)]).unwrap();
        }
    });
    let mut seen = 0;
    while seen < 300 {
        match reader.next_frame().unwrap() {
            Some(release) => {
                seen += 1;
                assert_eq!((release.epoch, release.values), (seen, frame(seen).values));
            }
            None => thread::yield_now(),
        }
    }
    writer.join().unwrap();
    assert!(reader.next_frame().unwrap().is_none());
}

#[test]
fn a_reader_waits_for_the_rest_of_a_frame() {
    let (outer, path) = new_state();
    let (mut store, _) = Store::open(&path, &header()).unwrap();
    store.commit(&[frame(1)]).unwrap();
    let whole = std::fs::read(path.join("public.log")).unwrap();
    let growing = outer.path().join("public.log");
    let mut reader = None;
    for length in 0..whole.len() {
        std::fs::write(&growing, &whole[..length]).unwrap();
        match &mut reader {
            None => reader = PublicReader::open(outer.path()).ok(),
            Some(reader) => assert!(PublicReader::next_frame(reader).unwrap().is_none(), "{length} bytes"),
        }
    }
    std::fs::write(&growing, &whole).unwrap();
    assert_eq!(reader.unwrap().next_frame().unwrap().map(|release| release.epoch), Some(1));
}

#[test]
fn a_reader_refuses_epochs_that_go_backwards() {
    let (outer, path) = new_state();
    let (mut store, _) = Store::open(&path, &header()).unwrap();
    let log = path.join("public.log");
    let length = |path: &PathBuf| std::fs::metadata(path).unwrap().len() as usize;
    let beginning = length(&log);
    store.commit(&[frame(1)]).unwrap();
    let first_end = length(&log);
    drop(store);
    let (mut store, _) = Store::open(&path, &header()).unwrap();
    store.commit(&[frame(2)]).unwrap();
    let bytes = std::fs::read(&log).unwrap();
    let (begin, first, second) = (&bytes[..beginning], &bytes[beginning..first_end], &bytes[first_end..]);
    let check = |parts: &[&[u8]], good: usize| {
        std::fs::write(outer.path().join("public.log"), parts.concat()).unwrap();
        let mut reader = PublicReader::open(outer.path()).unwrap();
        (0..good).for_each(|_| assert!(reader.next_frame().unwrap().is_some()));
        assert!(matches!(reader.next_frame(), Err(StateError::Disorder { .. })));
    };
    check(&[begin, second], 0);
    check(&[begin, first, first], 1);
    check(&[begin, first, second, first], 2);
}

#[test]
fn errors_hold_no_sums() {
    let (_outer, path) = new_state();
    let secret = 0x5ec2_e75e_c2e7_5ec2_e75e_i128;
    let (mut store, _) = Store::open(&path, &header()).unwrap();
    let frame = |epoch| EpochFrame {
        epoch,
        positions: vec![],
        sums: vec![secret].into(),
        values: vec![0],
        admitted: None,
    };
    store.commit(&[frame(1)]).unwrap();
    let wrong = store.commit(&[frame(7)]).unwrap_err();
    drop(store);
    let log = path.join("private-000001.log");
    let mut bytes = std::fs::read(&log).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&log, bytes).unwrap();
    let damaged = Store::open(&path, &header()).err().unwrap();
    for error in [wrong, damaged] {
        for text in [format!("{error}"), format!("{error:?}")] {
            assert!(!text.contains(&secret.to_string()) && !text.contains(&format!("{secret:x}")), "{text}");
        }
    }
}
