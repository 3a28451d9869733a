//! Tests that budgets always hold, and that every kind of neighbours composes or is refused.

use std::thread;

use proptest::prelude::*;

use hushflow_mechanism::accounting::Rho;
use hushflow_mechanism::accounting::event::Accountant;

use super::*;
use crate::state::{Enrolment, EpochFrame};

const RECORD: [Neighbours; 3] = [Neighbours::ReplaceOne, Neighbours::ReplaceOneInPlace, Neighbours::ZeroOut];

fn charge(neighbours: Neighbours, noise_multiplier: f64) -> Charge {
    Charge {
        pipeline: format!("σ = {noise_multiplier}"),
        method: "jme".into(),
        unit: Unit::Record,
        within: vec![],
        neighbours,
        private: true,
        epsilon: 1.0,
        delta: 1e-6,
        noise_multiplier,
        total_variation: 1e-20,
        epochs: 10,
        rho: None,
        pure: None,
        sampled: None,
    }
}

fn entry(charge: Charge) -> LedgerEntry {
    LedgerEntry { identity: "00".into(), started: "2026-01-01T00:00:00Z".into(), charge }
}

fn request(budget: Option<Budget>) -> LedgerRequest {
    let data_set = Some("flights".into());
    let charge = charge(Neighbours::ReplaceOne, 4.0);
    LedgerRequest { charge, budget, data_set, shared: true, started: String::new() }
}

fn about(neighbours: Neighbours) -> Adjacency {
    Adjacency { unit: Unit::Record, neighbours }
}

fn budget(epsilon: f64, neighbours: Neighbours) -> Budget {
    Budget::new(Epsilon::new(epsilon).unwrap(), Delta::new(1e-6).unwrap(), about(neighbours))
}

fn ledger(charges: &[Charge]) -> Ledger {
    Ledger { data_set: None, budget: None, entries: charges.iter().cloned().map(entry).collect() }
}

/// μ of two entries for each kind of neighbours, in units of the μ of one; 0 without a guarantee.
#[test]
fn every_pair_of_neighbours_composes_or_is_refused() {
    use Neighbours::{ReplaceOne, ReplaceOneInPlace, ZeroOut};
    let check = |first, second, expected: [f64; 3]| {
        let both = ledger(&[charge(first, 4.0), charge(second, 4.0)]);
        let found =
            RECORD.map(|target| both.composition(&about(target)).map_or(0.0, |spent| 4.0 * spent.mu()));
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12, "{first} and {second}: {found} {expected}");
        }
    };
    let (two, five, eight) = (2_f64.sqrt(), 5_f64.sqrt(), 8_f64.sqrt());
    check(ReplaceOne, ReplaceOne, [two, two, two]);
    check(ReplaceOne, ReplaceOneInPlace, [0.0, two, 0.0]);
    check(ReplaceOne, ZeroOut, [five, five, two]);
    check(ReplaceOneInPlace, ReplaceOneInPlace, [0.0, two, 0.0]);
    check(ReplaceOneInPlace, ZeroOut, [0.0, five, 0.0]);
    check(ZeroOut, ZeroOut, [eight, eight, two]);
}

#[test]
fn the_default_neighbour_relation_fits_the_entries() {
    let check = |neighbours: &[Neighbours], expected| {
        let charges: Vec<_> = neighbours.iter().map(|&neighbours| charge(neighbours, 4.0)).collect();
        assert_eq!(ledger(&charges).adjacency(), about(expected), "{neighbours:?}");
        assert!(ledger(&charges).composition(&about(expected)).is_ok());
    };
    check(&[], Neighbours::ReplaceOne);
    check(&[Neighbours::ZeroOut; 2], Neighbours::ZeroOut);
    check(&[Neighbours::ZeroOut, Neighbours::ReplaceOne], Neighbours::ReplaceOne);
    check(&RECORD, Neighbours::ReplaceOneInPlace);
}

#[test]
fn seeded_noise_breaks_the_composition_and_fits_no_budget() {
    let seeded = Charge { private: false, ..charge(Neighbours::ReplaceOne, 4.0) };
    let broken = ledger(&[charge(Neighbours::ReplaceOne, 4.0), seeded.clone()]);
    let reason = broken.composition(&about(Neighbours::ReplaceOne)).unwrap_err();
    assert!(
        matches!(reason, CompositionError::Seeded { .. }) && reason.to_string().contains("protect nobody")
    );
    let refused = Ledger::default().with(entry(seeded), Some(budget(100.0, Neighbours::ReplaceOne)));
    assert!(matches!(refused, Err(LedgerRefusal::NoGuarantee { .. })));
    let refused =
        broken.with(entry(charge(Neighbours::ReplaceOne, 4.0)), Some(budget(100.0, Neighbours::ReplaceOne)));
    assert!(
        matches!(refused, Err(LedgerRefusal::NoGuarantee { .. })),
        "a seeded entry leaves room for no other"
    );
}

#[test]
fn exact_counts_fit_no_budget_of_replace_one() {
    let refused = Ledger::default()
        .with(entry(charge(Neighbours::ReplaceOneInPlace, 1e6)), Some(budget(100.0, Neighbours::ReplaceOne)));
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("counts were released exactly"), "{message}");
}

#[test]
fn a_budget_remains_once_it_is_entered() {
    let (two, three) = (budget(2.0, Neighbours::ReplaceOne), budget(3.0, Neighbours::ReplaceOne));
    let one = || entry(charge(Neighbours::ReplaceOne, 10.0));
    let ledger = Ledger::default().with(one(), None).unwrap();
    assert_eq!(ledger.budget, None);
    let ledger = ledger.with(one(), Some(two.clone())).unwrap().with(one(), None).unwrap();
    assert_eq!((ledger.budget.clone(), ledger.entries.len()), (Some(two.clone()), 3));
    let refused = ledger.clone().with(one(), Some(three.clone())).unwrap_err();
    assert_eq!(refused, LedgerRefusal::OtherBudget { recorded: Box::new(two), stated: Box::new(three) });
    let wasteful = entry(charge(Neighbours::ReplaceOne, 0.1));
    assert!(
        matches!(ledger.with(wasteful, None), Err(LedgerRefusal::Exceeded(_))),
        "also for those that state none"
    );
}

#[test]
fn a_refusal_reports_spent_requested_and_remaining_budget() {
    let one = || charge(Neighbours::ReplaceOne, 4.22468);
    let full = ledger(&[one(), one()]);
    let refused = full.clone().with(entry(one()), Some(budget(1.5, Neighbours::ReplaceOne))).unwrap_err();
    let message = refused.to_string();
    for part in [
        "(ε, δ) = (1.5, 1e-6) for replace-one neighbours",
        "2 entries have spent ε = 1.45467",
        "the (1, 1e-6) of this pipeline",
        "nothing was published",
        "epsilon = 0.3",
        "hushflow ledger DIR --budget",
    ] {
        assert!(message.contains(part), "{part:?} in {message}");
    }
    let LedgerRefusal::Exceeded(exceeded) = refused else { panic!("{message}") };
    let left = exceeded.left.unwrap();
    let calibrated = |epsilon: f64| {
        let (epsilon, delta) = (Epsilon::new(epsilon).unwrap(), Delta::new(1e-6).unwrap());
        let noise = hushflow_mechanism::accounting::gaussian::noise_multiplier_rounded_up(epsilon, delta);
        entry(charge(Neighbours::ReplaceOne, noise.value()))
    };
    let stated = Some(budget(1.5, Neighbours::ReplaceOne));
    assert!(full.clone().with(calibrated(left), stated.clone()).is_ok(), "the remaining budget can be spent");
    assert!(full.with(calibrated(left * 1.01), stated).is_err(), "and not exceeded");
}

/// A purely ε-private median spends more of a budget than Gaussian noise of the same (ε, δ): two
/// medians of ε = 1 exceed (1.5, 1e-6) together, and two Gaussian entries do not.
#[test]
fn pure_privacy_is_charged_by_its_worst_case() {
    let promise = (Epsilon::new(1.0).unwrap(), Delta::new(1e-6).unwrap());
    let two = |method, ranged| {
        let charge = Charge::of_mean("m".into(), (method, ranged), promise, NoiseSource::System).unwrap();
        let about = about(Neighbours::ReplaceOneInPlace);
        let spent = ledger(&[charge.clone(), charge]).composition(&about).unwrap();
        spent.delta(Epsilon::new(1.5).unwrap())
    };
    assert!(two(MeanMethod::Gaussian, false) < 1e-6);
    // Randomised response twice: δ(1.5) = p² (1 − e^−0.5), p = e/(1 + e).
    let worst = (1.0_f64 / (1.0 + (-1.0_f64).exp())).powi(2) * (1.0 - (-0.5_f64).exp());
    assert!(two(MeanMethod::Tukey, true) > worst && two(MeanMethod::Resilience, true) > worst, "{worst}");
    // Two thirds of ε are pure, p = e^⅔/(1 + e^⅔), and a third is Gaussian. Twice ⅔ is below 1.5,
    // so only the total variation is sure to count in δ(1.5).
    let less = two(MeanMethod::Resilience, false);
    assert!(less > 1e-7 && less < two(MeanMethod::Resilience, true), "{less}");
}

/// Two covariances, one of which selects, and a stream: μ² is the sum of 2ρ of the first, of 2ρ and
/// πρ of the parts of the second, and of the stream's μ². Written entries are read back.
#[test]
fn covariances_add_up_with_streams() {
    use covariance::CovarianceMethod::{Pace, Ssp};
    let promise = (Epsilon::new(1.0).unwrap(), Delta::new(1e-6).unwrap());
    let charge_of = |method: covariance::CovarianceMethod| {
        let spending = method.spending(5, Rho::new(0.02).unwrap()).unwrap();
        let in_place = Neighbours::ReplaceOneInPlace;
        Charge::of_covariance(("c".into(), method), &spending, promise, in_place, NoiseSource::System)
            .unwrap()
    };
    let all = ledger(&[charge_of(Ssp), charge_of(Pace), charge(Neighbours::ReplaceOneInPlace, 4.0)]);
    let squared = 0.04 + 2.0 * 0.013 + std::f64::consts::PI * 0.007 + 1.0 / 16.0;
    let found = all.composition(&about(Neighbours::ReplaceOneInPlace)).unwrap().mu().powi(2);
    assert!(found >= squared && found < squared * (1.0 + 1e-8), "{found} {squared}");
    let text = all.to_bytes().unwrap();
    assert_eq!(Ledger::from_bytes(&text).as_ref(), Ok(&all));
    assert_eq!(String::from_utf8(text).unwrap().matches("\"rho\"").count(), 2);
    let negative = String::from_utf8(all.to_bytes().unwrap())
        .unwrap()
        .replace("\"selection\":0.007", "\"selection\":-1");
    assert!(Ledger::from_bytes(negative.as_bytes()).is_err(), "{negative}");
}

/// If the budget has a large δ, there may be room for noise but not for any ε at a small δ.
#[test]
fn a_refusal_names_no_epsilon_where_none_is_left() {
    let wide =
        Budget::new(Epsilon::new(1.0).unwrap(), Delta::new(0.127).unwrap(), about(Neighbours::ReplaceOne));
    let refused = ledger(&[charge(Neighbours::ReplaceOne, 1.0)])
        .with(entry(charge(Neighbours::ReplaceOne, 4.0)), Some(wide))
        .unwrap_err();
    let LedgerRefusal::Exceeded(exceeded) = refused else { panic!("{refused}") };
    assert!(exceeded.left.is_none_or(|left| left > 1e-9), "{exceeded}");
}

#[test]
fn written_numbers_are_read_back_and_others_refused() {
    let ledger = ledger(&[charge(Neighbours::ZeroOut, 1.0 / 3.0), charge(Neighbours::ReplaceOne, 7e9)]);
    let ledger = Ledger { budget: Some(budget(0.1 + 0.2, Neighbours::ReplaceOne)), ..ledger };
    let text = String::from_utf8(ledger.to_bytes().unwrap()).unwrap();
    assert_eq!(Ledger::from_bytes(text.as_bytes()), Ok(ledger));
    for (from, to) in [
        ("\"noise_multiplier\":7000000000.0", "\"noise_multiplier\":-1.0"),
        ("\"total_variation\":1e-20", "\"total_variation\":0.0"),
        ("\"delta\":1e-6", "\"delta\":1.0"),
        ("0.30000000000000004", "-1.0"),
        ("\"method\"", "\"methods\""),
    ] {
        assert!(text.contains(from), "{from} in {text}");
        assert!(Ledger::from_bytes(text.replace(from, to).as_bytes()).is_err(), "{to}");
    }
}

#[test]
fn eight_threads_never_exceed_a_budget_and_lose_no_entry() {
    let outer = tempfile::tempdir().unwrap();
    let path = outer.path().join("ledger");
    // Sixteen of σ = 4 make μ = 1; seventeen do not fit.
    let stated = Budget::new(
        Epsilon::new(1.0).unwrap(),
        Delta::new(0.126_936_737_507).unwrap(),
        about(Neighbours::ReplaceOne),
    );
    let enrolled = |thread: usize, index: usize| {
        let state = outer.path().join(format!("state {thread} {index}"));
        let header = crate::state::PublicHeader { parameters: vec![], private: true };
        let enter = |enrolment: Option<&Enrolment>| enter(&path, enrolment, request(Some(stated.clone())));
        let opened = crate::state::Store::open_enrolled::<LedgerError>(
            &state,
            &header,
            &crate::state::StateSettings::default(),
            &path,
            enter,
        );
        opened.is_ok_and(|(mut store, _)| {
            // It was admitted, so it can pay.
            let frame = EpochFrame {
                epoch: 1,
                positions: vec![],
                sums: vec![1].into(),
                values: vec![2],
                admitted: None,
            };
            store.commit(&[frame]).expect("what was reserved is there");
            true
        })
    };
    let count = |thread| (0..4).filter(|&index| enrolled(thread, index)).count();
    let admitted: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || count(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let book = Book::open(&path).unwrap();
    assert_eq!((admitted, book.ledger.entries.len()), (16, 16));
}

fn entities(kind: &str, within: &[&str], neighbours: Neighbours) -> Charge {
    let within = within.iter().map(|&larger| larger.into()).collect();
    Charge { unit: Unit::Entity(kind.into()), within, ..charge(neighbours, 4.0) }
}

fn about_entities(kind: &str, neighbours: Neighbours) -> Adjacency {
    Adjacency { unit: Unit::Entity(kind.into()), neighbours }
}

/// Users and devices are unrelated unless one is nested in the other. Then both pipelines protect a
/// device, and only the first protects a user.
#[test]
fn entities_of_different_kinds_add_up_only_where_one_lies_within_the_other() {
    use Neighbours::{ReplaceOne, ZeroOut};
    let apart = ledger(&[entities("user", &[], ReplaceOne), entities("device", &[], ReplaceOne)]);
    for kind in ["user", "device"] {
        let refused = apart.composition(&about_entities(kind, ReplaceOne)).unwrap_err().to_string();
        assert!(refused.contains("nothing says that each"), "{refused}");
    }
    // Both guarantee something about one record: two steps each.
    assert_eq!(apart.adjacency(), about(ReplaceOne));
    let mu = |ledger: &Ledger, target| 4.0 * ledger.composition(&target).unwrap().mu();
    assert!((mu(&apart, about(ReplaceOne)) - 8_f64.sqrt()).abs() < 1e-9);

    let nested = ledger(&[entities("user", &[], ReplaceOne), entities("device", &["user"], ReplaceOne)]);
    assert_eq!(nested.adjacency(), about_entities("device", ReplaceOne));
    assert!((mu(&nested, about_entities("device", ReplaceOne)) - 5_f64.sqrt()).abs() < 1e-9);
    assert!((mu(&nested, about_entities("device", ZeroOut)) - 2_f64.sqrt()).abs() < 1e-9);
    let refused = nested.composition(&about_entities("user", ReplaceOne)).unwrap_err().to_string();
    assert!(refused.contains("any number of device entities"), "{refused}");

    // A budget for users admits no device. A budget for devices admits users if a file states the
    // nesting.
    let budget = |kind| {
        let (epsilon, delta) = (Epsilon::new(9.0).unwrap(), Delta::new(1e-6).unwrap());
        Some(Budget::new(epsilon, delta, about_entities(kind, ReplaceOne)))
    };
    let user = Ledger::default().with(entry(entities("user", &[], ReplaceOne)), budget("user")).unwrap();
    assert!(user.with(entry(entities("device", &["user"], ReplaceOne)), None).is_err());
    let user = ledger(&[entities("user", &[], ReplaceOne)]);
    assert!(user.clone().with(entry(entities("device", &[], ReplaceOne)), budget("device")).is_err());
    assert!(user.with(entry(entities("device", &["user"], ReplaceOne)), budget("device")).is_ok());
}

#[test]
fn a_ledger_belongs_to_one_data_set() {
    let unnamed = LedgerRequest { data_set: None, ..request(None) };
    let outer = tempfile::tempdir().unwrap();
    let path = outer.path().join("ledger");
    let refusal = |request| match enter(&path, None, request).err() {
        Some(LedgerError::Refused { refusal, .. }) => Some(refusal),
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal(unnamed.clone()), Some(LedgerRefusal::NoData { recorded: None }));
    enter_once(&path, charge(Neighbours::ReplaceOne, 4.0), Some("flights".into())).unwrap();
    let other = LedgerRequest { data_set: Some("weather".into()), ..request(None) };
    assert!(matches!(refusal(other), Some(LedgerRefusal::OtherData { .. })));
    let unnamed = refusal(unnamed).unwrap();
    assert_eq!(unnamed, LedgerRefusal::NoData { recorded: Some("flights".into()) });
    assert!(unnamed.to_string().contains("data_set = \"flights\" under [ledger]"), "{unnamed}");
    let nobody = enter_once(&path, charge(Neighbours::ReplaceOne, 4.0), None);
    assert!(matches!(nobody, Err(LedgerError::Refused { refusal: LedgerRefusal::NoData { .. }, .. })));
    assert_eq!(Book::open(&path).unwrap().ledger.data_set.as_deref(), Some("flights"));
}

/// The room of a damaged reservation is unknown, so other pipelines are refused.
#[test]
fn a_damaged_reservation_refuses_others() {
    let outer = tempfile::tempdir().unwrap();
    let path = outer.path().join("ledger");
    enter_once(&path, charge(Neighbours::ReplaceOne, 4.0), Some("flights".into())).unwrap();
    let _damaged = crate::state::Reservation::make(&path, b"{").unwrap();
    assert!(matches!(enter(&path, None, request(None)).err(), Some(LedgerError::Content { .. })));
    let once = enter_once(&path, charge(Neighbours::ReplaceOne, 4.0), Some("flights".into()));
    assert!(matches!(once, Err(LedgerError::Content { .. })), "{once:?}");
}

/// A reservation holds its room until its run ends, and is not a payment.
#[test]
fn a_reservation_holds_its_room_for_as_long_as_its_run() {
    let outer = tempfile::tempdir().unwrap();
    let path = outer.path().join("ledger");
    let stated = Some(budget(1.2, Neighbours::ReplaceOne));
    let charged = || enter(&path, None, request(stated.clone()));
    let first = charged().unwrap().expect("something is to be paid");
    assert!(matches!(charged().err(), Some(LedgerError::Refused { .. })));
    let once = enter_once(&path, charge(Neighbours::ReplaceOne, 4.0), None);
    assert!(matches!(once, Err(LedgerError::Refused { .. })), "an estimate does not take it either");
    assert!(matches!(Book::open(&path), Err(LedgerError::Missing { .. })), "nothing was paid");
    drop(first);
    let second = charged().unwrap();
    assert!(second.is_some(), "the room is free again");

    // A budget that is lowered meanwhile applies to later payments.
    let tight = budget(0.5, Neighbours::ReplaceOne);
    set_budget(&path, |_| tight).unwrap();
    let state = outer.path().join("state");
    let header = crate::state::PublicHeader { parameters: vec![], private: true };
    let settings = crate::state::StateSettings::default();
    let opened =
        crate::state::Store::open_enrolled::<LedgerError>(&state, &header, &settings, &path, |_| Ok(second));
    let frame =
        EpochFrame { epoch: 1, positions: vec![], sums: vec![1].into(), values: vec![2], admitted: None };
    let refused = opened.unwrap().0.commit(&[frame]).unwrap_err();
    assert!(matches!(refused, crate::state::StateError::Unpaid(_)), "{refused}");
    assert!(Book::open(&path).unwrap().ledger.entries.is_empty());
}

proptest! {
    /// For any sequence of noise and neighbours: admitted pipelines are within the budget, refused
    /// ones would exceed it.
    #[test]
    fn no_sequence_of_pipelines_exceeds_a_budget(
        epsilon in 0.1..5.0_f64,
        budgeted in 0_usize..3,
        asks in prop::collection::vec((0_usize..3, -1.0..4.0_f64, any::<bool>()), 1..40),
    ) {
        let budget = budget(epsilon, RECORD[budgeted]);
        let within = |ledger: &Ledger| {
            let spent = ledger.composition(&budget.adjacency()).ok();
            spent.is_some_and(|spent| spent.delta(Epsilon::new(epsilon).unwrap()) <= 1e-6)
        };
        let mut ledger = Ledger::default();
        for (neighbours, log_sigma, states) in asks {
            let one = entry(charge(RECORD[neighbours], log_sigma.exp()));
            let stated = (states || ledger.budget.is_none()).then(|| budget.clone());
            match ledger.clone().with(one.clone(), stated) {
                Ok(next) => {
                    prop_assert!(within(&next));
                    prop_assert_eq!(next.entries.len(), ledger.entries.len() + 1);
                    ledger = next;
                }
                Err(refusal) => {
                    prop_assert!(!refusal.to_string().contains("NaN"));
                    ledger.entries.push(one);
                    prop_assert!(!within(&ledger));
                    ledger.entries.pop();
                }
            }
        }
    }
}

fn median(epsilon: f64) -> Charge {
    let promise = (Epsilon::new(epsilon).unwrap(), Delta::new(1e-6).unwrap());
    Charge::of_mean("m".into(), (MeanMethod::Tukey, true), promise, NoiseSource::System).unwrap()
}

fn epsilon_of(ledger: &Ledger) -> ComposedEpsilon {
    let about = about(Neighbours::ReplaceOneInPlace);
    ledger.epsilon(&about, Delta::new(1e-6).unwrap()).unwrap().unwrap()
}

/// δ of k copies of randomised response, summed over the number of answers that favour one input.
#[test]
fn purely_private_entries_compose_as_randomised_response() {
    let (one, count) = (0.1_f64, 20);
    let found = epsilon_of(&ledger(&vec![median(one); count]));
    assert_eq!(found.accountant, Accountant::PrivacyLossDistributions);
    let delta = |epsilon: f64| {
        let likely = one.exp() / (1.0 + one.exp());
        let mut binomial = 1.0;
        (0..=count as i32)
            .map(|hits| {
                let law = |p: f64| p.powi(hits) * (1.0 - p).powi(count as i32 - hits);
                let term = binomial * (law(likely) - epsilon.exp() * law(1.0 - likely)).max(0.0);
                binomial *= (count as f64 - f64::from(hits)) / f64::from(hits + 1);
                term
            })
            .sum::<f64>()
    };
    assert!(
        delta(found.epsilon) <= 1e-6 && delta(found.epsilon - found.numerical_error) >= 1e-6,
        "{found:?}"
    );
    let spent = ledger(&vec![median(one); count]).composition(&about(Neighbours::ReplaceOneInPlace)).unwrap();
    assert!(found.epsilon < 0.9 * spent.epsilon(Delta::new(1e-6).unwrap()).unwrap().value());
}

#[test]
fn gaussian_entries_compose_in_closed_form() {
    let charge = charge(Neighbours::ReplaceOneInPlace, 4.0);
    let found = epsilon_of(&ledger(&[charge.clone(), charge.clone()]));
    assert_eq!((found.accountant, found.numerical_error), (Accountant::Gaussian, 0.0));
    // In the presence of a purely private entry, entries of both kinds count.
    let mixed = epsilon_of(&ledger(&[charge, median(0.1), median(0.1)]));
    assert_eq!(mixed.accountant, Accountant::PrivacyLossDistributions);
    assert!(mixed.epsilon > epsilon_of(&ledger(&[median(0.1), median(0.1)])).epsilon);
}

/// Blanking a record and replacing the blank are two steps.
#[test]
fn a_purely_private_entry_counts_for_every_step() {
    let entry = Charge { neighbours: Neighbours::ZeroOut, ..median(0.1) };
    let about =
        |neighbours| ledger(&vec![entry.clone(); 9]).epsilon(&about(neighbours), Delta::new(1e-6).unwrap());
    let [two, one] =
        [Neighbours::ReplaceOne, Neighbours::ZeroOut].map(|it| about(it).unwrap().unwrap().epsilon);
    let direct = epsilon_of(&ledger(&vec![median(0.2); 9])).epsilon;
    assert!((two / direct - 1.0).abs() < 1e-6 && one < two, "{two} {direct} {one}");
}

/// A budget limits entries that are chosen after seeing releases, so it counts μ² alone.
#[test]
fn a_budget_ignores_purely_private_parts() {
    let entries = vec![median(0.1); 20];
    let about = about(Neighbours::ReplaceOneInPlace);
    let epsilon = epsilon_of(&ledger(&entries)).epsilon * 1.01;
    let budget = Budget::new(Epsilon::new(epsilon).unwrap(), Delta::new(1e-6).unwrap(), about);
    let full = entries
        .into_iter()
        .try_fold(Ledger::default(), |ledger, one| ledger.with(entry(one), Some(budget.clone())));
    assert!(matches!(full, Err(LedgerRefusal::Exceeded(_))), "{full:?}");
}
