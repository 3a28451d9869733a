//! Tests that different worlds give the same output: other records with the same sums and the same
//! noise, so the released integers are equal. Everything that follows from them must then be equal
//! to the byte: the public log, standard output and sinks in every format, and whatever the other
//! oracle compares.
//!
//! Unusable rows have other defects in the other world (missing, NaN, infinite, no number, another
//! key, no time, no entity), and values beyond the bounds are further beyond them, up to overflow.
//! Where neighbours may not differ like this (in place, keys and times are public), rows differ in
//! values only. `same_release` covers different sums.

use super::factors::{Case, Factor as F};
use super::pairs::{self, Pair};
use super::public::Seen;
use super::rows::Maker;
use super::{Leak, Oracle, Verdict};

/// Number of cases without `HUSHFLOW_ORACLE_CASES`.
const DEFAULT_CASES: usize = 360;

/// Values that count as the upper bound of any column and otherwise occur in no row.
const BEYOND: [&str; 4] = ["1e3", "96", "1e300", "1.7e308"];

const SAME_SUMS: Oracle = Oracle { takes: |case| !case.races(), pair, judge };

/// Worlds of the same sums.
fn pair(case: &Case) -> Pair {
    let Pair { mut worlds, cut } = pairs::pair(case);
    let mut maker = Maker::new(case);
    // One value in each world, so that copies of a record stay copies in both or in neither.
    let beyond = [(); 2].map(|()| maker.one_of(&BEYOND));
    let [ones, others] = &mut worlds;
    for (one, other) in ones.iter_mut().zip(others) {
        let record = one.record.clone();
        (one.record, other.record) = if maker.chance(60) {
            (record.clone(), record)
        } else if !case.estimates() && maker.chance(50) {
            let beyond = beyond.map(|value| {
                let values = vec![value.to_owned(); record.values.len()];
                super::rows::Record { values, ..record.clone() }
            });
            beyond.into()
        } else if case.is(F::Neighbours, &["replace-one-in-place"]) {
            let blanks = [(); 2].map(|()| {
                let blank = maker.one_of(&["", "NaN", "inf", "-inf", "x", "1e400"]);
                super::rows::Record { values: vec![blank.to_owned(); record.values.len()], ..record.clone() }
            });
            blanks.into()
        } else {
            (maker.blank(&record), maker.blank(&record))
        };
    }
    Pair { worlds, cut }
}

fn judge(_: &Case, [one, other]: &[Seen; 2]) -> Verdict {
    let mut leaks = one.facts.leaks_of_equals(&other.facts);
    if one.values != other.values {
        leaks.insert(0, Leak { kind: "releases of equal sums".into(), detail: "they differ".into() });
    }
    Verdict { share: None, leaks }
}

#[test]
#[ignore = "slow"]
fn streams_of_equal_sums_give_equal_output() {
    SAME_SUMS.test(DEFAULT_CASES).expect_no_leaks();
}
