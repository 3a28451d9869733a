//! Audits of planted faults, and of honest mechanisms.
//!
//! A [`FaultyPath`] is the real path with one fault. For every fault a test checks that the audit
//! finds it, with noise from the operating system. Honest mechanisms pass, and come near their
//! claim where it is tight.
//!
//! A single audit raises a false alarm with probability below 1e-8. It misses a planted fault with
//! probability below 1e-6: each fault moves the measured value by more than six standard deviations
//! beyond the distance that the audit needs to detect it.

use super::*;
use crate::mechanism::{MomentParameters, Strategies};
use crate::moments::{Clipper, Layout, QuantisedRows, SecondMoment};
use crate::sensitivity::Neighbours;
use crate::strategy::build;
use crate::workload::Workload;
use std::collections::BTreeMap;
use std::sync::Mutex;

const EPOCHS: u64 = 4;

const FALSE_ALARM: f64 = 1e-8;

/// A fault that the audit must find.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    HalfOfTheNoise,
    TwoPercentLessNoise,
    NoiseForTwiceTheSecondMomentWeight,
    ClippedOneUnitTooFar,
    SumsClippedInPlaceOfRecords,
    NoiseReusedAfterARestart,
    FloatingPointNoise,
}

struct FaultyPath {
    real: RealPath,
    layout: Layout,
    clipper: Clipper,
    bug: Bug,
    /// The sums of the last release, and their release without noise.
    last: Mutex<[Vec<Vec<i128>>; 2]>,
}

impl FaultyPath {
    fn new(mechanism: &MatrixMechanism, bug: Bug) -> Self {
        let parameters = mechanism.moments().parameters();
        let clipper = Clipper::unscaled(parameters.layout.dimension, parameters.clip_norm).unwrap();
        let real = RealPath::new(mechanism.clone()).unwrap();
        Self { real, layout: mechanism.layout(), clipper, bug, last: Mutex::default() }
    }

    /// Returns the release of these sums without noise.
    fn exact(&self, sums: &[Vec<i128>]) -> Result<Vec<Vec<i128>>, AuditError> {
        let mut last = self.last.lock().unwrap();
        if last[0] != sums {
            let nothing: Vec<_> = sums.iter().map(|row| vec![0; row.len()]).collect();
            let seed = NoiseSource::Seeded(1);
            let exact = difference(self.real.release(sums, seed)?, &self.real.release(&nothing, seed)?);
            *last = [sums.to_vec(), exact];
        }
        Ok(last[1].clone())
    }

    /// Returns the sums of one cell, with the bug.
    fn cell(&self, records: &[&CanaryRecord]) -> Vec<i128> {
        let rows: Vec<Vec<i128>> = records.iter().map(|record| self.row(&record.values)).collect();
        let mut sums = vec![0; self.layout.coordinates()];
        for row in &rows {
            sums[Layout::COUNT] += 1;
            self.layout.first().zip(row).for_each(|(position, value)| sums[position] += value);
            for (position, (i, j)) in self.layout.second().zip(self.layout.second_entries()) {
                sums[position] += row[i] * row[j];
            }
        }
        if self.bug == Bug::SumsClippedInPlaceOfRecords {
            let unit = |power: i128| rows.len() as i128 * (1_i128 << 20).pow(power as u32);
            sums[self.layout.first()].iter_mut().for_each(|sum| *sum = (*sum).clamp(-unit(1), unit(1)));
            sums[self.layout.second()].iter_mut().for_each(|sum| *sum = (*sum).clamp(-unit(2), unit(2)));
        }
        sums
    }

    /// Returns a record in integers.
    fn row(&self, values: &[f64]) -> Vec<i128> {
        if self.bug == Bug::SumsClippedInPlaceOfRecords {
            let unit = (1 << 20) as f64 / self.clipper.clip_norm();
            return values.iter().map(|value| (value * unit).round() as i128).collect();
        }
        let mut rows = QuantisedRows::new(self.layout.dimension);
        self.clipper.quantise(values, &mut rows).unwrap();
        let longer = |value: &f64| *value as i128 + (*value as i128).signum();
        rows.values().iter().map(longer).collect()
    }

    /// Replaces the noise of an honest release, epoch by epoch, with that of this bug.
    fn spoil(&self, noise: &mut [Vec<i128>]) {
        let width = self.layout.coordinates();
        let second = self.layout.second();
        match self.bug {
            Bug::HalfOfTheNoise => noise.iter_mut().flatten().for_each(|z| *z /= 2),
            Bug::TwoPercentLessNoise => noise.iter_mut().flatten().for_each(|z| *z = *z * 98 / 100),
            Bug::NoiseForTwiceTheSecondMomentWeight => {
                let of_second = |(position, _): &(usize, &mut i128)| second.contains(&(position % width));
                let all = noise.iter_mut().flat_map(|row| row.iter_mut().enumerate().filter(of_second));
                all.for_each(|(_, z)| *z = *z * 7071 / 10_000);
            }
            Bug::NoiseReusedAfterARestart => noise[1] = noise[0].clone(),
            _ => {}
        }
    }
}

impl AuditSubject for FaultyPath {
    fn sums(&self, stream: &CanaryStream) -> Result<Vec<Vec<i128>>, AuditError> {
        if !matches!(self.bug, Bug::ClippedOneUnitTooFar | Bug::SumsClippedInPlaceOfRecords) {
            return self.real.sums(stream);
        }
        let mut cells: BTreeMap<(u64, u32), Vec<&CanaryRecord>> = BTreeMap::new();
        for record in &stream.records {
            cells.entry((record.epoch, record.key)).or_default().push(record);
        }
        let cell = |epoch, key| self.cell(cells.get(&(epoch, key)).map_or(&[], Vec::as_slice));
        let epoch = |epoch| (0..stream.keys).flat_map(|key| cell(epoch, key)).collect();
        Ok((1..=stream.epochs).map(epoch).collect())
    }

    fn release(&self, sums: &[Vec<i128>], source: NoiseSource) -> Result<Vec<Vec<i128>>, AuditError> {
        let exact = self.exact(sums)?;
        let mut noise = difference(self.real.release(sums, source)?, &exact);
        self.spoil(&mut noise);
        let is_float = self.bug == Bug::FloatingPointNoise;
        let noisy = |v: i128, z: i128| if is_float { (v as f64 + z as f64) as i128 } else { v + z };
        let rows = exact.iter().zip(&noise);
        Ok(rows.map(|(v, z)| v.iter().zip(z).map(|(&v, &z)| noisy(v, z)).collect()).collect())
    }
}

fn difference(a: Vec<Vec<i128>>, b: &[Vec<i128>]) -> Vec<Vec<i128>> {
    a.iter().zip(b).map(|(a, b)| a.iter().zip(b).map(|(a, b)| a - b).collect()).collect()
}

#[derive(Clone, Copy)]
struct AuditCase {
    method: Method,
    neighbours: Neighbours,
    dimension: usize,
    second: SecondMoment,
    strategy: &'static str,
    participation: &'static str,
    second_moment_weight: Option<f64>,
}

const PLAIN: AuditCase = AuditCase {
    method: Method::Jme,
    neighbours: Neighbours::ReplaceOne,
    dimension: 1,
    second: SecondMoment::Full,
    strategy: "square-root",
    participation: "1",
    second_moment_weight: None,
};

fn audited(case: &AuditCase) -> AuditClaim {
    let parameters = MomentParameters {
        method: case.method,
        layout: Layout::new(case.dimension, case.second),
        neighbours: case.neighbours,
        clip_norm: 3.0,
        noise_multiplier: 0.35,
        second_moment_weight: case.second_moment_weight,
        count_weight: None,
        bin_weight: None,
    };
    let strategy = build(case.strategy, &Workload::Prefix, Some(EPOCHS)).unwrap();
    let participation: Participation = case.participation.parse().unwrap();
    let mechanism =
        MatrixMechanism::with_participation(parameters, Strategies::shared(strategy), participation, EPOCHS);
    let delta = Delta::new(1e-6).unwrap();
    let epsilon = gaussian::epsilon(NoiseMultiplier::new(0.35).unwrap(), delta);
    AuditClaim::new(&mechanism.unwrap(), participation, EPOCHS, 2, (epsilon, delta)).unwrap()
}

fn findings(subject: &dyn AuditSubject, audited: &AuditClaim, trials: u64) -> Vec<AuditFinding> {
    let canaries = canaries(audited).unwrap();
    let settings = AuditSettings { trials, false_alarm: FALSE_ALARM, canaries: canaries.len() };
    let finding_of = |canary| audit(subject, audited, canary, &settings, &mut |_| ()).unwrap();
    canaries.iter().map(finding_of).collect()
}

/// Checks that an honest mechanism has no violations. Its worst canary comes near the claim if the
/// claim is `attained`.
fn check_honest(case: &AuditCase, attained: bool) {
    let audited = audited(case);
    let findings = findings(&RealPath::new(audited.mechanism.clone()).unwrap(), &audited, 60_000);
    assert!(findings.iter().all(|finding| finding.violations.is_empty()), "{findings:?}");
    let most = |of: fn(&AuditFinding) -> f64| findings.iter().map(of).fold(0.0, f64::max);
    let (distance, epsilon) = (most(|finding| finding.distance), most(|finding| finding.epsilon));
    assert_eq!(distance > audited.mu() * (1.0 - 1e-5), attained, "{distance} of {}", audited.mu());
    assert!(!attained || epsilon > 0.9 * audited.epsilon.value(), "{epsilon} of {:?}", audited.epsilon);
}

/// Checks that the canary of this name finds the bug.
#[track_caller]
fn check_caught(bug: Bug, canary: &str, violation: Violation, trials: u64) {
    let audited = audited(&PLAIN);
    let canaries = canaries(&audited).unwrap();
    let settings = AuditSettings { trials, false_alarm: FALSE_ALARM, canaries: canaries.len() };
    let canary = canaries.iter().find(|found| found.name == canary).unwrap();
    let broken = FaultyPath::new(&audited.mechanism, bug);
    let found = audit(&broken, &audited, canary, &settings, &mut |_| ()).unwrap();
    assert!(found.violations.contains(&violation), "{found:?}");
}

#[test]
#[ignore = "slow"]
fn honest_mechanisms_pass_and_come_near_their_claim() {
    use Neighbours::{ReplaceOne, ReplaceOneInPlace, ZeroOut};
    let check = |case: AuditCase| check_honest(&case, true);
    check(PLAIN);
    check(AuditCase { strategy: "identity", dimension: 2, ..PLAIN });
    check(AuditCase { neighbours: ReplaceOneInPlace, dimension: 5, second: SecondMoment::Diagonal, ..PLAIN });
    check(AuditCase { neighbours: ZeroOut, dimension: 2, ..PLAIN });
    check(AuditCase { participation: "2x2", ..PLAIN });
    check(AuditCase { strategy: "banded-inverse-square-root:2", dimension: 2, ..PLAIN });
    check(AuditCase { method: Method::Pp, neighbours: ReplaceOne, ..PLAIN });
    check(AuditCase { method: Method::Cs, dimension: 3, ..PLAIN });
}

/// Beyond the free weight the worst records are neither equal nor opposite.
#[test]
fn the_joint_worst_case_is_found() {
    let in_place = AuditCase {
        neighbours: Neighbours::ReplaceOneInPlace,
        strategy: "identity",
        second_moment_weight: Some(5.0 / 9.0),
        ..PLAIN
    };
    check_honest(&in_place, true);
    check_honest(&AuditCase { dimension: 2, ..in_place }, true);
    check_honest(&AuditCase { dimension: 3, second: SecondMoment::Diagonal, ..in_place }, true);
}

#[test]
fn loose_claims_hold_as_well() {
    for method in [Method::Ime { first_moment_share: 0.5 }, Method::Cs, Method::JointClip] {
        let case = AuditCase { method, neighbours: Neighbours::ReplaceOneInPlace, ..PLAIN };
        check_honest(&case, false);
    }
}

#[test]
fn half_of_the_noise_is_caught() {
    check_caught(Bug::HalfOfTheNoise, "opposite", Violation::Noise, 20_000);
}

#[test]
#[ignore = "slow"]
fn two_percent_less_noise_is_caught() {
    check_caught(Bug::TwoPercentLessNoise, "opposite", Violation::Noise, 1_200_000);
}

#[test]
fn noise_for_another_second_moment_weight_is_caught() {
    check_caught(Bug::NoiseForTwiceTheSecondMomentWeight, "another-key", Violation::Noise, 150_000);
}

#[test]
fn a_record_clipped_one_unit_too_far_is_caught() {
    check_caught(Bug::ClippedOneUnitTooFar, "opposite", Violation::Distance, 20_000);
}

#[test]
fn sums_clipped_in_place_of_records_are_caught() {
    check_caught(Bug::SumsClippedInPlaceOfRecords, "outlier", Violation::Distance, 20_000);
}

#[test]
fn noise_reused_after_a_restart_is_caught() {
    check_caught(Bug::NoiseReusedAfterARestart, "opposite", Violation::Noise, 100_000);
}

#[test]
fn floating_point_noise_is_caught() {
    check_caught(Bug::FloatingPointNoise, "opposite", Violation::Grid, 20_000);
}

#[test]
fn invalid_audits_are_refused() {
    let audited = audited(&PLAIN);
    let subject = RealPath::new(audited.mechanism.clone()).unwrap();
    let canary = &canaries(&audited).unwrap()[0];
    let settings = AuditSettings { trials: 99, false_alarm: FALSE_ALARM, canaries: 1 };
    let error = audit(&subject, &audited, canary, &settings, &mut |_| ()).unwrap_err();
    assert!(matches!(error, AuditError::Trials { found: 99, least: 100 }), "{error}");
    for (key, epoch) in [(1, 1), (0, 0), (0, 5)] {
        let records = vec![CanaryRecord { key, epoch, values: vec![0.0] }];
        let error = subject.sums(&CanaryStream { keys: 1, epochs: EPOCHS, records }).unwrap_err();
        assert!(matches!(error, AuditError::Cell { .. }), "{error}");
    }
}
