//! A pipeline makes its ledger entry and publishes two epochs on one simulated disk. The tests
//! inject every fault at every call. Requirements:
//!
//! - every published release is paid for: its entry is in the ledger after any power cut;
//! - a state directory pays once, however often it starts;
//! - the pipeline can always start from the remaining files, and the run finishes.

use super::{
    Enrolment, EpochFrame, LedgerFile, LedgerPayment, PublicHeader, PublicReader, StateError, Store,
    SumRetention,
    simulated::{DiskFault, LOSSES, SimulatedDisk},
    storage::segment_name,
};
use crate::ledger::{Charge, Ledger, LedgerError, LedgerRequest, enter_in};
use hushflow_mechanism::{accounting::adjacency::Unit, sensitivity::Neighbours};
use std::path::Path;

fn charge() -> Charge {
    Charge {
        pipeline: "flights".into(),
        method: "jme".into(),
        unit: Unit::Record,
        within: vec![],
        neighbours: Neighbours::ReplaceOne,
        private: true,
        epsilon: 1.0,
        delta: 1e-6,
        noise_multiplier: 4.3,
        total_variation: 1e-20,
        epochs: 2,
        rho: None,
        pure: None,
        sampled: None,
    }
}

/// One run: makes its ledger entry and publishes the missing epochs, or fails.
fn enrol_and_publish(disk: &SimulatedDisk) -> Result<(), LedgerError> {
    live_with(disk, b"clip_norm = 1", enter(disk))
}

fn request() -> LedgerRequest {
    let started = "2026-01-01T00:00:00Z".into();
    LedgerRequest { charge: charge(), budget: None, data_set: None, shared: false, started }
}

/// Makes the entry as `ledger::enter` does, without reservations, which do not affect payment.
fn enter(
    disk: &SimulatedDisk,
) -> impl FnOnce(Option<&Enrolment>) -> Result<Option<LedgerPayment>, LedgerError> + use<> {
    let file = LedgerFile::on(Box::new(disk.clone()));
    move |enrolment| {
        if let Some(enrolment) = enrolment.filter(|enrolment| enrolment.has_begun()) {
            return enter_in(&file, enrolment, request()).map(|()| None);
        }
        let text = file.read()?;
        let ledger: Ledger = text.map(|text| serde_json::from_slice(&text).unwrap()).unwrap_or_default();
        let entered = enrolment.is_some_and(|enrolment| ledger.entry(&enrolment.identity()).is_some());
        let enter = move |enrolment: &Enrolment| Ok(enter_in(&file, enrolment, request())?);
        Ok(Some(LedgerPayment { entered, enter: Box::new(enter) }))
    }
}

fn live_with(
    disk: &SimulatedDisk,
    parameters: &[u8],
    enter: impl FnOnce(Option<&Enrolment>) -> Result<Option<LedgerPayment>, LedgerError>,
) -> Result<(), LedgerError> {
    let header = PublicHeader { parameters: parameters.to_vec(), private: true };
    let open = |storage| Store::recover(storage, None, &header, SumRetention::default());
    let (mut store, _) =
        Store::recover_enrolled(Box::new(disk.clone()), &header, open, Path::new("ledger"), enter)?;
    for epoch in store.committed() + 1..=2 {
        store.commit(&[EpochFrame {
            epoch,
            positions: vec![],
            sums: vec![7].into(),
            values: vec![9],
            admitted: None,
        }])?;
    }
    Ok(())
}

fn ledger(disk: &SimulatedDisk) -> Ledger {
    let text = LedgerFile::on(Box::new(disk.clone())).read().unwrap();
    text.map(|text| serde_json::from_slice(&text).unwrap()).unwrap_or_default()
}

fn is_public(disk: &SimulatedDisk) -> bool {
    PublicReader::of(Box::new(disk.clone()))
        .is_ok_and(|mut reader| matches!(reader.next_frame(), Ok(Some(_))))
}

/// Checks that there is at most one entry, and that there is one if a release was seen.
fn is_paid(disk: &SimulatedDisk, seen: bool) -> bool {
    let entries = ledger(disk).entries.len();
    entries == 1 || entries == 0 && !seen
}

/// Checks the entries that remain on the disk, and that a run finishes with one entry.
fn check(disk: &SimulatedDisk, seen: bool, context: &str) {
    assert!(is_paid(disk, seen), "{context}: {} entries, seen: {seen}", ledger(disk).entries.len());
    for start in 1..=2 {
        enrol_and_publish(disk).unwrap_or_else(|error| panic!("{context}, start {start}: {error}"));
        assert_eq!(ledger(disk).entries.len(), 1, "{context}, start {start}");
    }
}

fn at_every_call(fault: DiskFault, mut case: impl FnMut(&SimulatedDisk, &str)) {
    for call in 0.. {
        let disk = SimulatedDisk::default();
        disk.fail_at(call, fault);
        let ended = enrol_and_publish(&disk);
        if !disk.struck() {
            assert!(ended.is_ok() && call > 15, "{call} calls are too few to be a test");
            return;
        }
        case(&disk, &format!("{fault:?} at call {call}"));
    }
}

#[test]
fn a_power_cut_at_any_call_leaves_nothing_unpaid_and_nothing_paid_twice() {
    at_every_call(DiskFault::Power, |disk, context| {
        let seen = is_public(disk);
        check(&disk.after_restart(), seen, context);
        for loss in LOSSES {
            check(&disk.after_power_cut(loss), seen, &format!("{context}, losing {loss:?}"));
        }
    });
}

#[test]
fn a_disk_without_room_for_the_first_epoch_costs_nothing() {
    let mut refused = 0;
    for capacity in (0..3000).chain(32_500..36_500).step_by(8) {
        let disk = SimulatedDisk::default();
        disk.limit(Some(capacity));
        let ended = enrol_and_publish(&disk);
        disk.limit(None);
        let entries = ledger(&disk).entries.len();
        assert_eq!(entries, usize::from(is_public(&disk)), "{capacity} bytes: {ended:?}");
        refused += usize::from(ended.is_err());
        check(&disk, false, "with more room");
    }
    assert!((300..800).contains(&refused), "{refused} lives found the disk full");
}

/// If the path leads to another file than the log, another run may have replaced the log. Then this
/// run publishes nothing and pays nothing.
#[test]
fn a_run_whose_log_was_replaced_pays_nothing() {
    let disk = SimulatedDisk::default();
    let header = PublicHeader { parameters: b"clip_norm = 1".to_vec(), private: true };
    let open = |storage| Store::recover(storage, None, &header, SumRetention::default());
    let storage = Box::new(disk.clone());
    let (mut store, _) =
        Store::recover_enrolled(storage, &header, open, Path::new("ledger"), enter(&disk)).unwrap();
    disk.put(&segment_name(1), &disk.content(&segment_name(1)).unwrap());
    let (positions, sums) = (vec![], vec![7].into());
    let first = EpochFrame { epoch: 1, positions, sums, values: vec![9], admitted: None };
    assert!(matches!(store.commit(&[first]), Err(StateError::Replaced { .. })));
    assert!(ledger(&disk).entries.is_empty() && disk.content("enrolment").is_none());
}

#[test]
fn a_full_disk_or_a_failed_sync_leaves_nothing_unpaid_and_nothing_paid_twice() {
    for fault in [DiskFault::Full, DiskFault::Sync] {
        at_every_call(fault, |disk, context| {
            let restarted = disk.after_restart();
            check(&restarted, is_public(disk), context);
            for loss in LOSSES {
                check(&restarted.after_power_cut(loss), true, &format!("{context}, later losing {loss:?}"));
            }
        });
    }
}

#[test]
fn a_removed_log_cannot_restart_under_the_same_entry() {
    let disk = SimulatedDisk::default();
    enrol_and_publish(&disk).unwrap();
    let log = disk.content(&segment_name(1)).unwrap();
    disk.lose("public.log");
    // The start of the private log was on disk before any payment.
    for length in 0..60 {
        disk.put(&segment_name(1), &log[..length]);
        assert!(enrol_and_publish(&disk).is_err(), "{length} bytes are left");
    }
    disk.lose(&segment_name(1));
    let lost = enrol_and_publish(&disk).unwrap_err();
    assert!(matches!(lost, LedgerError::State(StateError::PrivateLogLost { .. })), "{lost}");
    disk.lose("enrolment");
    enrol_and_publish(&disk).unwrap();
    assert_eq!(ledger(&disk).entries.len(), 2, "a directory that is recreated pays again");
}

#[test]
fn a_state_directory_whose_entry_is_missing_is_refused() {
    let disk = SimulatedDisk::default();
    enrol_and_publish(&disk).unwrap();
    disk.lose("ledger");
    assert!(matches!(enrol_and_publish(&disk), Err(LedgerError::Lost { .. })));
    // On this disk the log had not begun, so the entry was never made.
    let early = |call| {
        let disk = SimulatedDisk::default();
        disk.fail_at(call, DiskFault::Power);
        enrol_and_publish(&disk)
            .is_err()
            .then(|| disk.after_restart())
            .filter(|disk| disk.content("enrolment").is_some())
    };
    let disk = (0..40).find_map(early).expect("the enrolment comes first");
    assert_eq!(ledger(&disk).entries.len(), 0);
    // A copy of the directory may have the same identity, so the run pays under a new one.
    let identity = || Enrolment::on(&disk).unwrap().unwrap().identity();
    let before = identity();
    enrol_and_publish(&disk).unwrap();
    assert_ne!(identity(), before);
    assert!(ledger(&disk).entry(&identity()).is_some());
}

/// A directory without a release has not paid, and may start again with other parameters. After its
/// first release it may not.
#[test]
fn parameters_can_be_corrected_only_before_the_first_release() {
    let disk = SimulatedDisk::default();
    let open = |parameters: &[u8]| {
        let header = PublicHeader { parameters: parameters.to_vec(), private: true };
        let open = |storage| Store::recover(storage, None, &header, SumRetention::default());
        let storage = Box::new(disk.clone());
        Store::recover_enrolled(storage, &header, open, Path::new("ledger"), enter(&disk)).map(drop)
    };
    open(b"clip_nrom = 1").unwrap();
    open(b"clip_norm = 2").unwrap();
    assert!(disk.content("enrolment").is_none() && ledger(&disk).entries.is_empty());
    enrol_and_publish(&disk).unwrap();
    assert_eq!(ledger(&disk).entries.len(), 1);
    let refused = open(b"clip_norm = 2").unwrap_err();
    assert!(matches!(refused, LedgerError::State(StateError::HeaderDiffers { .. })), "{refused}");
    enrol_and_publish(&disk).unwrap();
}

/// Corrects the parameters of a directory that has not paid, with a power cut at every call.
#[test]
fn a_run_starts_after_a_power_cut_during_a_correction_of_parameters() {
    for call in 0.. {
        let disk = SimulatedDisk::default();
        live_with(&disk, b"clip_nrom = 1", |_| Err(LedgerError::Missing { path: "".into() })).unwrap_err();
        let header = PublicHeader { parameters: b"clip_nrom = 1".to_vec(), private: true };
        Store::recover(Box::new(disk.clone()), None, &header, SumRetention::default()).map(drop).unwrap();
        disk.fail_at(call, DiskFault::Power);
        let ended = enrol_and_publish(&disk);
        if !disk.struck() {
            assert!(ended.is_ok() && call > 15, "{call} calls are too few to be a test");
            return;
        }
        let seen = is_public(&disk);
        for loss in LOSSES {
            check(&disk.after_power_cut(loss), seen, &format!("power at call {call}, losing {loss:?}"));
        }
    }
}

/// Every flipped bit and every cut of both files is an error with file and offset.
#[test]
fn damage_is_always_detected() {
    let whole = SimulatedDisk::default();
    enrol_and_publish(&whole).unwrap();
    for name in ["ledger", "enrolment"] {
        let good = whole.content(name).unwrap();
        let flips = (0..8 * good.len()).map(|bit| {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            bad
        });
        let cuts = (0..good.len()).map(|length| good[..length].to_vec());
        let longer = [&good[..], &[0]].concat();
        for bad in flips.chain(cuts).chain([longer]) {
            let disk = whole.after_restart();
            disk.put(name, &bad);
            let error = enrol_and_publish(&disk).unwrap_err();
            let LedgerError::State(StateError::Damaged { path, .. }) = &error else {
                panic!("{name}: {error}")
            };
            assert!(path.ends_with(name), "{error}");
        }
    }
}

/// Checks that the tests above can fail.
#[test]
fn planted_skipping_the_ledger_is_caught() {
    let disk = SimulatedDisk::default();
    live_with(&disk, b"clip_norm = 1", |_| Ok(None)).unwrap();
    assert!(!is_paid(&disk, is_public(&disk)));
}
