//! Tests mistakes in one of several sources.

use super::{Mistake, published, rows};
use crate::harness::{await_until, finish, releases, run, wait};

const ONE: &str = "[source]\npath = 'data.csv'\npreflight = 'stop'\n";

const TWO: &str = "[[sources]]\nname = 'a'\npath = 'a.csv'\npreflight = 'stop'\n\
                   [[sources]]\nname = 'b'\npath = 'b.csv'\npreflight = 'stop'\n";

/// Every eighth row is of source b, whose keys are misspelt from row `misspelt` on.
fn small_and_large(misspelt: usize) -> Mistake {
    let mistake = Mistake::new("", &[(ONE, TWO)]);
    let (right, spoilt) = (rows(12_000, usize::MAX), rows(12_000, misspelt));
    let part = |data: &str, of_b: bool| {
        let rows = data.lines().enumerate().filter(|&(row, _)| row == 0 || (row % 8 == 0) == of_b);
        rows.map(|(_, line)| format!("{line}\n")).collect::<String>()
    };
    mistake.lab.write("a.csv", part(&right, false));
    mistake.lab.write("b.csv", part(&spoilt, true));
    mistake
}

/// A source whose rows don't count is detected beside larger ones, at its first rows.
#[test]
fn each_source_is_judged_by_its_own_rows() {
    let mistake = small_and_large(0);
    let (code, report) = mistake.report();
    let problem = &report["problems"][0];
    assert_eq!((code, &problem["kind"], &problem["source"]), (Some(4), &"unlisted keys".into(), &"b".into()));
    mistake.run(&[]).failed(
        1,
        &[
            "in the source \"b\", every row has a key that [key] doesn't list",
            "nothing was published or spent",
        ],
    );
    assert_eq!(mistake.published(), 0);
}

/// A small source that turns bad stops the run, all of whose rows are among the first ones, while
/// the other source has more.
#[test]
fn a_small_source_that_turns_bad_stops_the_run() {
    let mistake = small_and_large(7000);
    let (code, report) = mistake.report();
    assert_eq!((code, &report["epochs_published"]), (Some(4), &0.into()));
    for workers in [1, 3] {
        let state = mistake.lab.path(&format!("state-{workers}"));
        for _ in 0..2 {
            let ended = finish(&mut run(&mistake.pipeline, &state, workers));
            ended.failed(
                1,
                &["in the source \"b\", in one part of the source, ", "a key that [key] doesn't list"],
            );
            assert_eq!(published(&state), 0, "{workers} workers");
        }
    }
}

/// The number of epochs that several sources publish before a stop depends on their rows alone: not
/// on which source is read first, on restarts, or on a kill. `check` names the same reason.
#[test]
#[ignore = "slow"]
fn several_sources_stop_at_the_same_epoch_in_any_order_of_reading() {
    let data = rows(17_000, 14_000);
    let mistake = Mistake::new(
        &data,
        &[
            ("length = '1d'", "length = '2h'\nallowed_lateness = '1h'"),
            ("horizon = 60", "horizon = 720"),
            (ONE, &format!("{TWO}[[sources]]\nname = 'c'\npath = 'c.csv'\npreflight = 'stop'\n")),
        ],
    );
    // One source has most of the rows, and one ends early.
    let lines: Vec<String> = data.lines().skip(1).map(|line| format!("{line}\n")).collect();
    let part = |chosen: &dyn Fn(usize) -> bool| {
        let rows = lines.iter().enumerate().filter(|(row, _)| chosen(*row)).map(|(_, line)| line.as_str());
        "event,arrival,city,age\n".to_owned() + &rows.collect::<String>()
    };
    mistake.lab.write("a.csv", part(&|row| row % 8 > 1));
    mistake.lab.write("b.csv", part(&|row| row % 8 == 0));
    mistake.lab.write("c.csv", part(&|row| row % 8 == 1 && row < 3000));
    let (code, report) = mistake.check();
    assert!(code == Some(4) && report.contains("\"kind\":\"unlisted keys\""), "{report}");
    let mut counts = Vec::new();
    for (round, workers) in [1, 3, 1, 2].into_iter().enumerate() {
        let state = mistake.lab.path(&format!("state-{round}"));
        let stopped = || {
            let ended = finish(&mut run(&mistake.pipeline, &state, workers));
            ended.failed(1, &["a key that [key] doesn't list", "are published, and no later one"]);
            published(&state)
        };
        let published = stopped();
        assert_eq!(stopped(), published, "a restart publishes nothing more");
        for after in [2, published / 2] {
            std::fs::remove_dir_all(&state).expect("a state directory");
            let mut child = run(&mistake.pipeline, &state, workers).spawn().expect("the run starts");
            await_until("epochs are published", || {
                state.join("public.log").exists() && releases(&state).len() as u64 >= after
            });
            child.kill().expect("a child can be killed");
            wait(child);
            assert_eq!(stopped(), published, "killed after epoch {after}");
        }
        counts.push(published);
    }
    // Row 14,000 is of epoch 584, and each judgement takes a tenth of all rows.
    assert!((583..650).contains(&counts[0]), "{counts:?}");
    assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
}

/// `check` judges later rows of several sources like those of a single one.
#[test]
fn check_finds_where_one_of_several_sources_turns_bad() {
    let data = rows(12_000, 7000);
    let one = Mistake::new(&data, &[]);
    assert!(one.check().1.contains("\"kind\":\"unlisted keys\""));
    let two = Mistake::new(&data, &[(ONE, TWO)]);
    for (name, odd) in [("a.csv", 0), ("b.csv", 1)] {
        let mut lines = data.lines().map(|line| format!("{line}\n"));
        let half: String = lines.next().into_iter().chain(lines.skip(odd).step_by(2)).collect();
        two.lab.write(name, half);
    }
    let (code, report) = two.check();
    assert!(code == Some(4) && report.contains("\"kind\":\"unlisted keys\""), "{report}");
}
