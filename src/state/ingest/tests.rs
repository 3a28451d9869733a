//! Injects every fault at every call of a journal that changes the disk, and continues the journal
//! from the remaining files. Also cuts the power at the first twelve calls of the recovery that
//! follows. Requirements:
//!
//! - an acknowledged record is read back at its position;
//! - no record occurs twice if the sender continues after the number that the next start reports;
//! - only records that a commit has recorded as counted may be missing.

use super::{verify::verify_storage, *};
use crate::state::simulated::{DiskFault, LOSSES, PowerLoss, SimulatedDisk};
use std::{io::Read, sync::Arc};

const RECORDS: u64 = 60;
const HEADER: &[u8] = b"x\n";

fn record(number: u64) -> Vec<u8> {
    format!("{number:06}\n").into_bytes()
}

fn records(numbers: std::ops::Range<u64>) -> Vec<u8> {
    numbers.flat_map(record).collect()
}

fn open(disk: &SimulatedDisk, from: Position) -> Result<Arc<IngestJournal>, StateError> {
    IngestJournal::open(disk.share(), from, (150, u64::MAX)).map(Arc::new)
}

/// Gives up at once, because a journal without faults never waits.
fn end_when_full(_: JournalFull) -> bool {
    false
}

fn begin(ingest: &IngestJournal) {
    assert!(ingest.begin(HEADER, &mut end_when_full).unwrap());
}

/// Appends records, the last of them as a separate part. The journal must have room.
fn append(ingest: &IngestJournal, numbers: std::ops::Range<u64>) {
    let (first, last) = (records(numbers.start..numbers.end - 1), record(numbers.end - 1));
    let count = numbers.end - numbers.start;
    assert!(ingest.append([&first, &last], count, &mut end_when_full).unwrap());
}

/// Reads from `from` to the end of the session that precedes this run's session.
fn read_back(ingest: &Arc<IngestJournal>, from: Position) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for session in from.part..ingest.session() {
        let offset = if session == from.part { from.offset } else { 0 };
        if let Some(mut reader) = IngestReader::open(ingest, Position::new(session, offset))? {
            assert_eq!(reader.header(), HEADER);
            reader.read_to_end(&mut bytes)?;
        }
    }
    Ok(bytes)
}

/// Description of a violated requirement or of a refused start.
type IngestFailure = String;

/// An outside observer's knowledge: the number of safe records, and the record count at each
/// position.
#[derive(Clone)]
struct IngestObserver {
    acknowledged: u64,
    counted: (Position, u64),
}

impl IngestObserver {
    fn new() -> Self {
        IngestObserver { acknowledged: 0, counted: (Position::START, 0) }
    }

    /// Sends records in groups, starting after the number that the journal reports, until all are
    /// sent or the disk fails.
    fn run(&mut self, disk: &SimulatedDisk) -> Result<(), StateError> {
        let ingest = open(disk, self.counted.0)?;
        // The number reported at the start is an acknowledgement too.
        let mut sent = ingest.acknowledged(None).unwrap_or(0);
        assert!(sent >= self.acknowledged, "{sent} records of {} are left", self.acknowledged);
        self.acknowledged = sent;
        let first = sent;
        if !ingest.begin(HEADER, &mut end_when_full)? {
            return Ok(());
        }
        while sent < RECORDS {
            let next = (sent + 1 + sent % 4).min(RECORDS);
            if !ingest.append([&records(sent..next), &[]], next - sent, &mut end_when_full)? {
                // This is the same as the end of a run at this point.
                return Ok(());
            }
            (self.acknowledged, sent) = (next, next);
            if sent % 3 == 0 {
                let position = Position::new(ingest.session(), 7 * (sent - first));
                self.counted = (position, sent);
                ingest.discard_before(position)?;
            }
        }
        ingest.end(None);
        ingest.finish()
    }

    /// Starts twice on `disk` without faults. Both starts must succeed and meet all requirements.
    fn check_start(&mut self, disk: &SimulatedDisk) -> Result<(), IngestFailure> {
        if let Some(problem) = verify_storage(disk).problem {
            return Err(format!("verify: {problem}"));
        }
        let mut found = None;
        for again in [false, true] {
            let disk = if again { disk.after_power_cut(PowerLoss::Everything) } else { disk.clone() };
            let ingest = open(&disk, self.counted.0).map_err(|error| format!("refused: {error}"))?;
            let records_before = ingest.acknowledged(None).unwrap_or(0);
            if records_before < self.acknowledged || found.is_some_and(|found| found != records_before) {
                return Err(format!("{records_before} records are left of {}", self.acknowledged));
            }
            found = Some(records_before);
            let bytes = read_back(&ingest, self.counted.0).map_err(|error| format!("unreadable: {error}"))?;
            if bytes != records(self.counted.1..records_before) {
                return Err("the records are others than those that came".into());
            }
        }
        Ok(())
    }
}

/// Injects the fault into the first run at each call in turn. Returns the number of calls.
fn inject_at_each_call(fault: DiskFault, mut check: impl FnMut(&IngestObserver, &SimulatedDisk)) -> usize {
    for call in 0.. {
        let (disk, mut world) = (SimulatedDisk::default(), IngestObserver::new());
        disk.fail_at(call, fault);
        let outcome = world.run(&disk);
        if !disk.struck() {
            assert!(outcome.is_ok() && world.acknowledged == RECORDS);
            return call;
        }
        check(&world, &disk);
    }
    0
}

#[test]
fn no_acknowledged_record_is_lost_or_doubled_by_a_power_cut() {
    let calls = inject_at_each_call(DiskFault::Power, |world, disk| {
        for loss in LOSSES {
            world
                .clone()
                .check_start(&disk.after_power_cut(loss))
                .unwrap_or_else(|broken| panic!("{loss:?}: {broken}"));
        }
    });
    assert!(calls > 100, "{calls} calls");
}

#[test]
fn no_acknowledged_record_is_lost_or_doubled_by_a_full_disk_or_a_sync_that_fails() {
    for fault in [DiskFault::Full, DiskFault::Sync] {
        inject_at_each_call(fault, |world, disk| {
            world
                .clone()
                .check_start(&disk.after_restart())
                .unwrap_or_else(|broken| panic!("{fault:?}: {broken}"));
        });
    }
}

#[test]
fn a_fault_during_recovery_loses_no_record() {
    inject_at_each_call(DiskFault::Power, |world, disk| {
        for loss in [PowerLoss::Nothing, PowerLoss::Torn, PowerLoss::Some(4)] {
            for call in 0..12 {
                let (disk, mut world) = (disk.after_power_cut(loss), world.clone());
                disk.fail_at(call, DiskFault::Power);
                // The run may fail.
                let _ = world.run(&disk);
                let disk = disk.after_power_cut(loss);
                world.check_start(&disk).unwrap_or_else(|broken| panic!("{loss:?}, call {call}: {broken}"));
                world.run(&disk).unwrap();
                assert_eq!(world.acknowledged, RECORDS);
                world.check_start(&disk).unwrap();
            }
        }
    });
}

/// Checks that the other tests can fail.
#[test]
fn a_disk_that_lies_is_caught() {
    let caught = (0..200).any(|call| {
        let (disk, mut world) = (SimulatedDisk::default(), IngestObserver::new());
        disk.ignore_syncs();
        disk.fail_at(call, DiskFault::Power);
        let _ = world.run(&disk);
        world.check_start(&disk.after_power_cut(PowerLoss::Everything)).is_err()
    });
    assert!(caught);
}

#[test]
fn after_an_orderly_end_no_record_stays() {
    let (disk, mut world) = (SimulatedDisk::default(), IngestObserver::new());
    world.run(&disk).unwrap();
    world.check_start(&disk).unwrap();
    let left = disk.names().unwrap();
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(verify_storage(&disk).bytes == 0);
}

/// A journal of two sessions, each in several segments, before any commit.
fn small_journal() -> (SimulatedDisk, Vec<u8>) {
    let disk = SimulatedDisk::default();
    for numbers in [0..9, 9..18] {
        let ingest = open(&disk, Position::START).unwrap();
        begin(&ingest);
        for next in numbers.step_by(3) {
            append(&ingest, next..next + 3);
        }
    }
    (disk, records(0..18))
}

/// Flipped bits are detected, except in the last group, which then looks like one that was never
/// acknowledged.
#[test]
fn every_flipped_bit_or_cut_is_detected_or_loses_only_the_last_group() {
    let (whole, expected) = small_journal();
    let names = whole.names().unwrap();
    let last = names.last().unwrap().clone();
    assert!(names.len() > 2, "{names:?}");
    let check = |name: &str, bytes: &[u8]| {
        let disk = whole.after_restart();
        disk.put(name, bytes);
        let read = open(&disk, Position::START)
            .map_err(io::Error::other)
            .and_then(|ingest| read_back(&ingest, Position::START));
        match read {
            Err(_) => true,
            Ok(read) if read == expected => false,
            Ok(read) => {
                assert!(name == last && expected.starts_with(&read), "{name}");
                true
            }
        }
    };
    for name in &names {
        let good = whole.content(name).unwrap();
        for bit in 0..8 * good.len() {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(check(name, &bad), "{name}: bit {bit}");
        }
        for length in 0..good.len() {
            check(name, &good[..length]);
        }
    }
}

#[test]
fn a_journal_with_a_gap_is_refused() {
    let (disk, _) = small_journal();
    let names = disk.names().unwrap();
    let check = |name: &String, from: Position| {
        let disk = disk.after_restart();
        disk.lose(name);
        let read = open(&disk, from).map_err(io::Error::other).and_then(|ingest| read_back(&ingest, from));
        let error = read.expect_err("a gap");
        assert!(error.to_string().contains("has nothing at byte"), "{error}");
    };
    check(&names[0], Position::START);
    check(&names[1], Position::START);
    let nothing = open(&SimulatedDisk::default(), Position::new(0, 7)).err();
    assert!(matches!(nothing, Some(StateError::IngestGap { offset: 7, .. })));
    let ingest = open(&disk, Position::new(1, 700)).unwrap();
    let beyond = read_back(&ingest, Position::new(1, 700)).unwrap_err();
    assert!(beyond.to_string().contains("session 1"), "{beyond}");
}

#[test]
fn a_reader_waits_for_bytes_and_for_the_end() {
    let disk = SimulatedDisk::default();
    let ingest = open(&disk, Position::START).unwrap();
    let reading = std::thread::spawn({
        let ingest = Arc::clone(&ingest);
        move || {
            let mut bytes = Vec::new();
            let mut reader = IngestReader::open(&ingest, Position::START)?.expect("the session begins");
            reader.read_to_end(&mut bytes).map(|_| bytes)
        }
    });
    let telling = std::thread::spawn({
        let ingest = Arc::clone(&ingest);
        move || {
            let mut numbers = vec![];
            while let Some(number) = ingest.acknowledged(numbers.last().copied()) {
                numbers.push(number);
            }
            numbers
        }
    });
    begin(&ingest);
    for next in (0..90).step_by(3) {
        append(&ingest, next..next + 3);
    }
    ingest.end(None);
    assert_eq!(reading.join().unwrap().unwrap(), records(0..90));
    let numbers = telling.join().unwrap();
    assert!(numbers.is_sorted() && numbers.last() == Some(&90), "{numbers:?}");
}

#[test]
fn a_reader_receives_the_cause_of_the_end_once() {
    let ingest = open(&SimulatedDisk::default(), Position::START).unwrap();
    ingest.end(Some(io::ErrorKind::StorageFull.into()));
    let error = IngestReader::open(&ingest, Position::START).err().expect("the failure");
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert!(IngestReader::open(&ingest, Position::START).unwrap().is_none());
}

/// A group that a full disk refuses is retried until it is written, and a segment without a
/// successor keeps growing.
#[test]
fn a_disk_that_was_full_for_a_moment_has_every_record_once() {
    let (mut waited, mut stopped) = (0, 0);
    for call in 0.. {
        let disk = SimulatedDisk::default();
        let ingest = open(&disk, Position::START).unwrap();
        begin(&ingest);
        disk.fail_at(call, DiskFault::Full);
        let mut safe = 0;
        for next in (0..30).step_by(3) {
            let mut wait = |full| {
                assert_eq!(full, JournalFull::Disk);
                waited += 1;
                true
            };
            match ingest.append([&records(next..next + 3), &[]], 3, &mut wait) {
                Ok(appended) => assert!(appended),
                Err(error) => {
                    assert!(matches!(error, StateError::Stopped { .. }), "{error}");
                    stopped += 1;
                    break;
                }
            }
            safe = next + 3;
        }
        let safe = ingest.acknowledged(None).filter(|&records| records >= safe).unwrap();
        let struck = disk.struck();
        for loss in LOSSES {
            let disk = disk.after_power_cut(loss);
            assert!(verify_storage(&disk).problem.is_none(), "call {call}, {loss:?}");
            let ingest = open(&disk, Position::START).unwrap();
            let records_before = ingest.acknowledged(None).unwrap();
            assert!(
                records_before >= safe,
                "call {call}, {loss:?}: {records_before} records are left of {safe}"
            );
            assert_eq!(read_back(&ingest, Position::START).unwrap(), records(0..records_before));
        }
        if !struck {
            break;
        }
    }
    // The journal stops only if it can't know whether the name of a new segment is on disk.
    assert!(waited > 10 && stopped > 0 && 4 * stopped < waited, "{waited} {stopped}");
}

/// Appends three records if there is room. Otherwise returns the reason why there is no room.
fn try_append(ingest: &IngestJournal, next: u64) -> Option<JournalFull> {
    let mut full = None;
    let mut wait = |found| {
        full = Some(found);
        false
    };
    let appended = ingest.append([&records(next..next + 3), &[]], 3, &mut wait).unwrap();
    assert_eq!(appended, full.is_none());
    full
}

/// A journal with these limits on `disk`, of a segment and of all, and a thread that reads all of
/// it.
fn read_by_another(
    disk: &SimulatedDisk,
    limits: (u64, u64),
) -> (Arc<IngestJournal>, std::thread::JoinHandle<usize>) {
    let ingest = Arc::new(IngestJournal::open(disk.share(), Position::START, limits).unwrap());
    begin(&ingest);
    let reading = std::thread::spawn({
        let ingest = Arc::clone(&ingest);
        move || {
            let mut reader = IngestReader::open(&ingest, Position::START).unwrap().unwrap();
            reader.read_to_end(&mut Vec::new()).unwrap()
        }
    });
    (ingest, reading)
}

fn await_drained(ingest: &IngestJournal) {
    while !ingest.shared().drained {
        std::thread::yield_now();
    }
}

#[test]
fn a_journal_at_its_limit_takes_nothing_until_a_commit_makes_room() {
    const LIMIT: u64 = 1500;
    let disk = SimulatedDisk::default();
    let size =
        || disk.names().unwrap().iter().map(|name| disk.content(name).unwrap().len() as u64).sum::<u64>();
    let ingest = Arc::new(IngestJournal::open(disk.share(), Position::START, (150, LIMIT)).unwrap());
    begin(&ingest);
    let mut next = 0;
    let fill = |next: &mut u64| {
        while try_append(&ingest, *next).is_none() {
            *next += 3;
            assert!(size() <= LIMIT, "{} bytes", size());
        }
        assert_eq!(try_append(&ingest, *next), Some(JournalFull::Limit));
    };
    fill(&mut next);
    assert!(next > 12 && size() > LIMIT / 2);
    for epoch in 1..9 {
        ingest.committed(epoch, Position::new(0, 7 * next)).unwrap();
        let before = next;
        fill(&mut next);
        assert!(next > before, "a commit has made room");
    }
}

#[test]
fn a_long_segment_ends_before_a_group_beyond_the_limit() {
    const GROUP: usize = 1_200_000;
    let (ingest, reading) = read_by_another(&SimulatedDisk::default(), (64 << 20, 2 << 20));
    for _ in 0..3 {
        await_drained(&ingest);
        assert!(ingest.append([&vec![b'x'; GROUP], &[]], 1, &mut |_| false).unwrap());
    }
    await_drained(&ingest);
    ingest.closed(1);
    let size = || ingest.shared().segments.iter().map(|segment| segment.durable).sum::<u64>();
    assert!(size() > 3 * GROUP as u64);
    // An epoch is open whose first record is the last one of the second group.
    ingest.committed(1, Position::new(0, 2 * GROUP as u64 - 1)).unwrap();
    let left = size();
    assert!((2 * GROUP as u64..2 * GROUP as u64 + 1000).contains(&left), "the first is deleted: {left}");
    ingest.end(None);
    assert_eq!(reading.join().unwrap(), 3 * GROUP);
}

#[test]
fn an_epoch_longer_than_the_limit_is_read_one_group_at_a_time() {
    let disk = SimulatedDisk::default();
    let (ingest, reading) = read_by_another(&disk, (150, 400));
    disk.set_free(0);
    for next in (0..60).step_by(3) {
        await_drained(&ingest);
        assert_eq!(try_append(&ingest, next), None, "everything has been read, and nothing is closed");
    }
    await_drained(&ingest);
    ingest.closed(1);
    assert_eq!(try_append(&ingest, 60), Some(JournalFull::Limit), "a commit is due");
    ingest.committed(1, Position::new(0, 7 * 60)).unwrap();
    assert_eq!(try_append(&ingest, 60), None);
    ingest.end(None);
    assert_eq!(reading.join().unwrap(), 7 * 63);
}

#[test]
fn some_of_the_disk_is_left_to_the_logs() {
    let disk = SimulatedDisk::default();
    let ingest = open(&disk, Position::START).unwrap();
    begin(&ingest);
    disk.set_free(8 << 20);
    assert_eq!(try_append(&ingest, 0), Some(JournalFull::Disk));
    disk.set_free((8 << 20) + 1000);
    assert_eq!(try_append(&ingest, 0), None);
}

#[test]
fn a_frame_above_the_limit_is_never_written() {
    let disk = SimulatedDisk::default();
    let ingest = open(&disk, Position::START).unwrap();
    begin(&ingest);
    // These pages are never written, so they take no memory.
    let half = vec![0; (crate::state::MAX_PAYLOAD / 2) as usize];
    let refused = ingest.append([&half, &half], 1, &mut end_when_full);
    assert!(matches!(refused, Err(StateError::TooLarge { .. })));
    append(&ingest, 0..3);
    ingest.end(None);
    assert!(verify_storage(&disk).problem.is_none());
    let mut reader = IngestReader::open(&ingest, Position::START).unwrap().unwrap();
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, records(0..3));
}
