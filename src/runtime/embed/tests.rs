//! Publishing from a dataflow, restarts, and mistakes.

use super::*;
use std::process::Command;

const MINUTES: i64 = 1440;

/// Publishes one record for each minute of the first `days` days, from the first minute on.
fn publish(directory: &Path, days: i64) -> (u64, u64) {
    let builder = Pipeline::builder("minutes").column("x", 0.0, 1.0).keys("half", ["am", "pm"]);
    let pipeline = builder.epochs("1970-01-01", "1d", 4).guarantee(1.0, 1e-6).build().unwrap();
    let publisher = Publisher::open(&pipeline, directory).unwrap();
    let last = publisher.run(2, move |worker, publisher| {
        let mut input = worker.dataflow(|scope| {
            let (input, EpochStream { items, ends }) = publisher.input::<i64>(scope);
            let records = items
                .map(|(epoch, minute)| Record::new(epoch, u32::from(minute % MINUTES >= MINUTES / 2), [0.5]));
            records.publish(publisher, ends);
            input
        });
        for minute in (0..days * MINUTES).skip(worker.index()).step_by(worker.peers()) {
            input.advance(minute * 60_000_000);
            input.send(minute * 60_000_000, minute);
            worker.step();
        }
        input.end();
    });
    (publisher.first_epoch(), last.unwrap())
}

/// Returns the sum of the counts of all keys up to the last epoch in the log.
fn count(directory: &Path) -> f64 {
    let mut log = PublicReader::open(directory).unwrap();
    let publication = MomentPublication::from_header(log.header()).unwrap();
    let mut view = publication.view(&Workload::Prefix);
    let mut counts = 0.0;
    while let Some(release) = log.next_frame().unwrap() {
        counts = view.push(&release.values).unwrap().map(|moments| moments.count()).sum();
    }
    counts
}

/// A day counted twice or not at all is 1440 records. The noise of a count has a standard
/// deviation below 60, so an error of 700 has a probability below 1e-9.
#[test]
fn items_of_committed_epochs_count_once_when_they_are_sent_again() {
    let outer = tempfile::tempdir().unwrap();
    let directory = outer.path().join("state");
    assert_eq!(publish(&directory, 2), (1, 2));
    assert!((count(&directory) - 2.0 * MINUTES as f64).abs() < 700.0);
    assert_eq!(publish(&directory, 4), (3, 4));
    assert!((count(&directory) - 4.0 * MINUTES as f64).abs() < 700.0);
    assert_eq!(publish(&directory, 4), (5, 4));
}

#[test]
fn an_input_that_is_dropped_without_its_end_is_a_fault() {
    let outer = tempfile::tempdir().unwrap();
    let builder = Pipeline::builder("lost").column("x", 0.0, 1.0).guarantee(1.0, 1e-6);
    let pipeline = builder.epochs("1970-01-01", "1d", 4).build().unwrap();
    let publisher = Publisher::open(&pipeline, outer.path().join("state")).unwrap();
    let ended = publisher.run(1, |worker, publisher| {
        worker.dataflow(|scope| {
            let (_, EpochStream { items, ends }) = publisher.input::<i64>(scope);
            items.map(|(epoch, _)| Record::new(epoch, 0, [0.5])).publish(publisher, ends);
        });
    });
    assert!(matches!(ended, Err(RunError::Fault(reason)) if reason.contains("last epoch")));
}

/// Position of the item before which the child dies, once five epochs are committed.
const DIES_AT: u64 = 4500;

/// Publishes two partitions of ten days on two workers, one item every two minutes, from where they
/// resume; partition 1 is ten minutes behind. Dies before an item, if wanted. Returns the first
/// epoch and how many items each partition has sent.
fn publish_partitions(directory: &Path, dies: bool) -> (u64, [u64; 2]) {
    let builder = Pipeline::builder("partitions").column("x", 0.0, 1.0).set("simulation", "seed", 7);
    let pipeline = builder.epochs("1970-01-01", "6h", 40).guarantee(8.0, 1e-6);
    let pipeline = pipeline.set("epochs", "allowed_lateness", "20min").build().unwrap();
    let publisher = Publisher::open(&pipeline, directory).unwrap();
    let sent: Arc<[AtomicU64; 2]> = Arc::default();
    let counted = Arc::clone(&sent);
    let last = publisher.run(2, move |worker, publisher| {
        let partition = worker.index() as u32;
        let mut input = worker.dataflow(|scope| {
            let (input, EpochStream { items, ends }) = publisher.input_of::<f64>(scope, partition);
            items.map(|(epoch, value)| Record::new(epoch, 0, [value])).publish(publisher, ends);
            input
        });
        let begin = publisher.resume_after(partition).map_or(0, |last| last + 1);
        for position in begin..10 * 720 {
            // Every fifth item is late, and joins the oldest open epoch.
            let minute = 2 * position as i64;
            let late = if position % 5 == 4 { 500 } else { 10 * i64::from(partition) };
            if dies && position == DIES_AT {
                while publisher.0.committed.load(Ordering::Relaxed) < 5 {
                    worker.step();
                }
                std::process::abort();
            }
            input.advance(minute * 60_000_000);
            input.send_at(position, (minute - late) * 60_000_000, (position % 97) as f64 / 97.0);
            counted[partition as usize].fetch_add(1, Ordering::Relaxed);
            worker.step();
        }
        input.end();
    });
    last.unwrap();
    (publisher.first_epoch(), [0, 1].map(|partition: usize| sent[partition].load(Ordering::Relaxed)))
}

/// The releases of a log, whose noise comes from a seed.
fn releases(directory: &Path) -> Vec<Vec<i128>> {
    let mut log = PublicReader::open(directory).unwrap();
    std::iter::from_fn(|| log.next_frame().unwrap()).map(|frame| frame.values.to_vec()).collect()
}

/// The part of the next test that dies.
#[test]
fn a_publisher_that_is_killed() {
    if let Some(directory) = std::env::var_os("HUSHFLOW_TEST_KILLED_PUBLISHER") {
        publish_partitions(Path::new(&directory), true);
    }
}

/// A process that dies and starts again reads on from the positions of the last commit. It
/// publishes the same as one that lives, bit for bit, although it sends only the rest.
#[test]
fn a_killed_publisher_resumes_at_the_recorded_positions() {
    let outer = tempfile::tempdir().unwrap();
    let [whole, killed] = ["whole", "killed"].map(|name| outer.path().join(name));
    assert_eq!(publish_partitions(&whole, false), (1, [7200, 7200]));
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "runtime::embed::tests::a_publisher_that_is_killed"]);
    let status = child.env("HUSHFLOW_TEST_KILLED_PUBLISHER", &killed).output().unwrap().status;
    assert!(!status.success());
    let before = releases(&killed).len() as u64;
    assert!((5..30).contains(&before), "{before}");
    let (first, sent) = publish_partitions(&killed, false);
    assert_eq!(first, before + 1);
    // Six hours are 180 items; late ones are up to 500 minutes old.
    for sent in sent {
        assert!(
            (7200 - 180 * before - 10..=7200 - 180 * (before - 2)).contains(&sent),
            "{sent} after {before}"
        );
    }
    assert_eq!(releases(&killed), releases(&whole));
    assert_eq!(publish_partitions(&killed, false), (41, [0, 0]));
}

#[test]
fn a_partition_has_one_input_and_positions() {
    let outer = tempfile::tempdir().unwrap();
    let builder = Pipeline::builder("twice").column("x", 0.0, 1.0).guarantee(1.0, 1e-6);
    let pipeline = builder.epochs("1970-01-01", "1d", 4).build().unwrap();
    type Mistake = fn(&Publisher, Scope<'_, u64>);
    let mistakes: [(Mistake, &str); 3] = [
        (
            |publisher, scope| {
                [0, 0].into_iter().for_each(|number| drop(publisher.input_of::<f64>(scope, number)))
            },
            "one input",
        ),
        (|publisher, scope| drop(publisher.input_of::<f64>(scope, PARTITIONS)), "below 2²⁴"),
        (
            |publisher, scope| {
                publisher.input_of::<f64>(scope, 3).0.send(0, 0.5);
            },
            "send_at",
        ),
    ];
    for (number, (mistake, found)) in mistakes.into_iter().enumerate() {
        let publisher = Publisher::open(&pipeline, outer.path().join(number.to_string())).unwrap();
        let ended =
            publisher.run(1, move |worker, publisher| worker.dataflow(|scope| mistake(publisher, scope)));
        assert!(matches!(&ended, Err(RunError::Fault(reason)) if reason.contains(found)), "{ended:?}");
    }
}
