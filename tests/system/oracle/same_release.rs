//! Tests that worlds with different sums give the same release: noise is shifted by the difference
//! of the sums, so the released integers are equal. Everything public must then be equal to the
//! byte, as for equal sums (`same_output`).
//!
//! First, worlds run with the noise of one seed. With `y` for their releases, the offsets `target −
//! y` (`[simulation] offsets`) make each of them release `target`, which is the release of one of
//! them, or integers around every width. Worlds are neighbours, or differ in nearly all records: in
//! magnitude from subnormal to overflow, in epochs without a record, in thousands of records at one
//! bound. Cases with discovered keys are left out: which keys are shown depends on counts that have
//! noise of their own.

use std::path::Path;

use hushflow::publication::MomentPublication;

use super::factors::{Case, Factor as F};
use super::pairs::{self, Pair};
use super::public::Seen;
use super::rows::{Maker, Record};
use super::world::World;
use super::{Leak, Oracle, Verdict};
use crate::harness::{Lab, Random};

/// Number of cases without `HUSHFLOW_ORACLE_CASES`. Three in four release sums, and only those are
/// run.
const DEFAULT_CASES: usize = 320;

/// Rows at the start of a long stream, so that the sums of squares exceed 2⁵³.
const CROWD_ROWS: usize = 5000;

/// Powers of two at which an integer or a float gets wider. Rounded sums are integers modulo 2⁸⁸ or
/// more.
const WIDTHS: [u32; 9] = [7, 31, 32, 53, 61, 62, 63, 64, 86];

const VALUES: [&str; 10] = [
    "NaN",
    "inf",
    "-inf",
    "5e-324",
    "-1e-310",
    "1e-140",
    "1e140",
    "1e300",
    "-1.7976931348623157e308",
    "-0.0",
];

const SAME_RELEASES: Oracle =
    Oracle { takes: |case| !case.estimates() && !case.races() && !case.discovers(), pair, judge };

/// Worlds that are as far apart as possible, or neighbours.
fn pair(case: &Case) -> Pair {
    let Pair { mut worlds, mut cut } = pairs::pair(case);
    let mut maker = Maker::new(case);
    if case.is(F::Rows, &["many"]) && !case.is(F::Clock, &["records"]) {
        for world in &mut worlds {
            let first = world[0].clone();
            world.splice(0..0, vec![first; CROWD_ROWS]);
        }
        cut += CROWD_ROWS;
    }
    if maker.chance(25) {
        return Pair { worlds, cut };
    }
    let (extreme, silent) = (maker.chance(50), maker.random.below(case.number(F::Horizon) as u64) as i64);
    let [ones, others] = &mut worlds;
    for (one, other) in ones.iter_mut().zip(others) {
        if extreme {
            one.record.values = maker.corner(true);
        }
        let record = match maker.random.below(5) {
            _ if one.arrival / super::pipeline::LENGTH == silent => maker.blank(&one.record),
            0 => maker.blank(&one.record),
            1 => maker.record(one.arrival),
            2 => Record { values: maker.corner(false), ..one.record.clone() },
            3 => {
                let values = one.record.values.iter().map(|_| maker.one_of(&VALUES).to_owned()).collect();
                Record { values, ..one.record.clone() }
            }
            _ => one.record.clone(),
        };
        other.record = if case.is(F::Neighbours, &["replace-one-in-place"]) {
            Record { values: record.values, ..one.record.clone() }
        } else {
            record
        };
    }
    Pair { worlds, cut }
}

/// The release of both worlds: that of the first, or integers around every width.
fn target(case: &Case, one: &Seen) -> Vec<Vec<i128>> {
    if case.seed.is_multiple_of(2) {
        return one.values.clone();
    }
    let mut random = Random(case.seed);
    let noise = noisy(one);
    let mut epoch = |values: &Vec<i128>| {
        let width = 1i128 << WIDTHS[random.below(WIDTHS.len() as u64) as usize];
        let mut coordinate = |(at, &value): (usize, &i128)| match random.below(4) {
            _ if !noise[at % noise.len()] => value,
            0 => value,
            1 => -width + random.below(3) as i128 - 1,
            _ => width + random.below(3) as i128 - 1,
        };
        values.iter().enumerate().map(&mut coordinate).collect()
    };
    one.values.iter().map(&mut epoch).collect()
}

/// Coordinates of a key that have noise.
fn noisy(seen: &Seen) -> Vec<bool> {
    let publication = MomentPublication::from_header(&seen.header).expect("the header of a log");
    publication.mechanism().moments().noise().iter().map(|noise| noise.scale.is_some()).collect()
}

/// Runs the world again, with noise that makes it release the target.
fn releasing(
    target: &[Vec<i128>],
    case: &Case,
    pair: &Pair,
    (which, seen): (usize, &Seen),
    to: &Path,
) -> Seen {
    let row = |(target, values): (&Vec<i128>, &Vec<i128>)| {
        let offsets = target.iter().zip(values).map(|(target, value)| (target - value).to_string());
        offsets.collect::<Vec<_>>().join(",") + "\n"
    };
    let offsets: String = target.iter().zip(&seen.values).map(row).collect();
    World::with_offsets(case, pair, which, to, Some(&offsets))
}

fn judge(case: &Case, seen: &[Seen; 2]) -> Verdict {
    let mut leaks = Vec::new();
    let mut leak = |kind: &str, detail: String| leaks.push(Leak { kind: kind.into(), detail });
    let noise = noisy(&seen[0]);
    for (epoch, (ones, others)) in seen[0].values.iter().zip(&seen[1].values).enumerate() {
        let differ = |at: &usize| !noise[at % noise.len()] && ones.get(*at) != others.get(*at);
        if let Some(at) = (0..ones.len()).find(differ) {
            leak("exact coordinates", format!("coordinate {at} of epoch {} differs", epoch + 1));
        }
    }
    let (lab, pair, target) = (Lab::new(), pair(case), target(case, &seen[0]));
    let again =
        |which: usize| releasing(&target, case, &pair, (which, &seen[which]), &lab.path(&which.to_string()));
    let first = (target != seen[0].values).then(|| again(0));
    let (one, other) = (first.as_ref().unwrap_or(&seen[0]), again(1));
    for world in [one, &other] {
        if world.values != target {
            leak("releases", format!("{:?} where the noise was chosen for {target:?}", world.values));
        }
    }
    leaks.extend(one.facts.leaks(&other.facts));
    leaks.extend(one.facts.leaks_of_equals(&other.facts));
    if let (Some(said), true) = (&one.facts.failure, leaks.is_empty()) {
        leaks.push(Leak { kind: "broken".into(), detail: said.clone() });
    }
    Verdict { share: None, leaks }
}

#[test]
#[ignore = "slow"]
fn different_sums_with_the_same_release_leave_no_trace() {
    SAME_RELEASES.test(DEFAULT_CASES).expect_no_leaks();
}

/// Sums of more than 2⁵³ units, and integers of every width.
#[test]
fn wide_sums_and_releases_leave_no_trace() {
    let cases = ["arrival", "end-of-input"].into_iter().zip(["quiet", "json"]).enumerate();
    let case = |(seed, (clock, watch))| {
        let relation = ["replace-one", "zero-out"][seed];
        let levels = [
            (F::Clock, clock),
            (F::Watch, watch),
            (F::Rows, "many"),
            (F::Neighbours, relation),
            (F::Workers, "2"),
            (F::Strategy, "square-root"),
        ];
        Case::of(&levels, seed as u64)
    };
    SAME_RELEASES.tried(&cases.map(case).collect::<Vec<_>>()).expect_no_leaks();
}
