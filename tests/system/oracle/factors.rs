//! The factors of a case, and the choice of cases: each pair of levels of different factors occurs
//! in some case.
//!
//! A [`Case`] is one level of each factor and a seed. The rest follows from these by pure
//! functions, so the name printed by a failure is enough to run the case again. Levels that exclude
//! each other are repaired deterministically. Cases are chosen greedily among random candidates for
//! the pairs of levels that no earlier case has (pairwise covering: Cohen, Dalal, Fredman & Patton
//! 1997).

use std::collections::HashSet;
use std::fmt;
use std::ops::Index;

use hushflow::estimators::{covariance, mean};
use hushflow::mechanism::accounting::adjacency::{Adjacency, Nesting, Unit};
use hushflow::mechanism::sensitivity::Neighbours;
use hushflow::mechanism::strategy::KINDS;

use super::stores::STORES;
use crate::harness::Random;

/// Properties in which cases differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Factor {
    Unit,
    Neighbours,
    Claim,
    Limits,
    Method,
    Strategy,
    Clock,
    Jump,
    Source,
    Format,
    Keys,
    Moments,
    Columns,
    ClipNorm,
    Copies,
    Restart,
    Workers,
    Watch,
    Values,
    Pair,
    Horizon,
    Rows,
    Missing,
    Bounds,
    Sent,
    Histograms,
    Windows,
    Second,
}

use Factor as F;

/// The levels of each factor, the default first.
pub(super) const FACTORS: [(Factor, &[&str]); 28] = [
    (F::Unit, &["record", "entity"]),
    (F::Neighbours, &["replace-one", "zero-out", "replace-one-in-place"]),
    // One of the adjacencies to which the guarantee converts: its own, the next one, …
    (F::Claim, &["own", "second", "third", "fourth"]),
    // Participations, separation, records at once.
    (F::Limits, &["1/1/1", "2/1/1", "2/3/1", "3/2/2", "4/1/1 average"]),
    (
        F::Method,
        &[
            "jme",
            "ime",
            "cs",
            "pp",
            "joint-clip",
            "gaussian",
            "balloon",
            "prime",
            "prime-ht",
            "filter",
            "auto",
            "tukey",
            "resilience",
            "shrunk",
            "pace",
            "ssp",
            "ssp-tight",
            "diagonal",
            "adaptive",
            "separate",
            "coinpress",
        ],
    ),
    (
        F::Strategy,
        &[
            "identity",
            "square-root",
            "banded-square-root:3",
            "banded-inverse-square-root:3",
            "blt:2",
            "variable-blt:2",
            "variable-banded:3",
            "power-law:2",
            "tree-optimal-decoder",
            "fft-optimal-decoder",
            "log-perturbed-root",
            "matrix-square-root",
            "normalized-square-root",
            "normalized-banded-inverse-square-root:3",
            "banded-optimal:3",
            "banded-toeplitz-optimal:3",
            "banded-inverse-optimal:3",
            "banded-inverse-fractional-root:3",
            "optimal",
            "coa",
            "auto",
            "file:dense.csv",
            "comb-blt:2",
        ],
    ),
    (F::Clock, &["records", "arrival", "late folded", "late dropped", "end-of-input", "event-time"]),
    // With "back", the clock falls back for the last rows: far enough for a warning to everyone.
    (F::Jump, &["any", "limited", "back"]),
    // The last levels need a server: only [`stores`](super::stores) tries them.
    (F::Source, &["file", "two files", "two sources", "stdin", "journal", "postgres", "kafka", "s3"]),
    (F::Format, &["csv", "ndjson"]),
    (F::Keys, &["none", "three", "discovered"]),
    (F::Moments, &["full", "diagonal", "none"]),
    (F::Columns, &["1", "2", "3"]),
    (F::ClipNorm, &["default", "short"]),
    (F::Copies, &["none", "by id"]),
    (F::Restart, &["none", "grown", "torn", "killed"]),
    (F::Workers, &["1", "2", "3", "two processes"]),
    (F::Watch, &["quiet", "json", "csv", "sink", "log info", "log debug", "metrics", "table"]),
    (F::Values, &["plain", "odd", "huge"]),
    (F::Pair, &["extreme", "random"]),
    (F::Horizon, &["4", "7", "12"]),
    // Only a test of its own tries the last level: files that several readers parse in ranges.
    (F::Rows, &["few", "many", "ranges"]),
    (F::Missing, &["skip", "by column"]),
    (F::Bounds, &["columns", "keys"]),
    // Upper limit of the number of sent records of an entity in an epoch, if that number is
    // released.
    (F::Sent, &["none", "2", "5"]),
    // Of the first column, also of a text, or with groups and another weight.
    (F::Histograms, &["none", "bins", "bins and values", "tree and weight"]),
    // Epochs of a window and of a stride, for estimators of windows.
    (F::Windows, &["each epoch", "3/1", "4/2", "3/3", "growing"]),
    // The strategy of second moments.
    (F::Second, &["same", "identity", "square-root"]),
];

/// Number of methods that sum moments: the first ones. Estimators of means follow, then those of
/// covariances.
const MOMENTS: usize = 5;

const MEANS: usize = mean::MeanMethod::ALL.len();

/// A neighbour relation.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Relation {
    /// Whether neighbours differ in all records of an entity, or in one record.
    pub(super) entities: bool,
    pub(super) neighbours: Neighbours,
}

impl Relation {
    fn adjacency(self) -> Adjacency {
        let unit = if self.entities { Unit::Entity("entity".into()) } else { Unit::Record };
        Adjacency { unit, neighbours: self.neighbours }
    }

    /// Returns how many times the ledger charges a guarantee for these neighbours when asked about
    /// `wanted`.
    fn steps_to(self, wanted: Self) -> Option<u32> {
        self.adjacency().steps_to(&wanted.adjacency(), &Nesting::default()).ok()
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.neighbours, if self.entities { "entities" } else { "records" })
    }
}

/// A level of each factor, and a seed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Case {
    levels: Vec<usize>,
    pub(super) seed: u64,
}

impl Index<Factor> for Case {
    type Output = str;

    fn index(&self, factor: Factor) -> &str {
        FACTORS[factor as usize].1[self.levels[factor as usize]]
    }
}

/// The name by which to run a case again: a letter for each level, then the seed.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |&level: &usize| char::from(b'a' + level as u8);
        write!(f, "{}{}", self.levels.iter().map(letter).collect::<String>(), self.seed)
    }
}

impl Case {
    /// Parses the name of a case.
    pub(super) fn named(name: &str) -> Self {
        let (letters, seed) = name.split_at_checked(FACTORS.len()).expect("a letter for each factor");
        let levels = letters.bytes().map(|letter| usize::from(letter - b'a')).collect();
        Self { levels, seed: seed.parse().expect("a seed behind the letters") }
    }

    /// The case with these levels, and the default of all other factors.
    pub(super) fn of(levels: &[(Factor, &str)], seed: u64) -> Self {
        let mut case = Self { levels: vec![0; FACTORS.len()], seed };
        levels.iter().for_each(|(factor, level)| case.set(*factor, level));
        case.repaired()
    }

    /// Returns its levels in words, without the defaults.
    pub(super) fn words(&self) -> String {
        let odd = FACTORS.iter().filter(|(factor, levels)| self[*factor] != *levels[0]);
        odd.map(|(factor, _)| format!("{factor:?}: {}", &self[*factor])).collect::<Vec<_>>().join(", ")
    }

    fn random(random: &mut Random) -> Self {
        let level = |(factor, levels): &(Factor, &[&str])| match factor {
            // Only sums of moments have a distance.
            F::Method if random.below(3) > 0 => random.below(MOMENTS as u64) as usize,
            // Thousands of rows take longer.
            F::Rows => usize::from(random.below(12) == 0),
            F::Source => random.below((levels.len() - STORES.len()) as u64) as usize,
            _ => random.below(levels.len() as u64) as usize,
        };
        let levels = FACTORS.iter().map(level).collect();
        let mut case = Self { levels, seed: random.below(1 << 32) };
        // Nearly every estimator refuses a window of few rows.
        if case.estimates() && random.below(3) == 0 {
            case.set(F::Rows, "many");
        }
        case.repaired()
    }

    /// Returns the case with this factor at its default, if that is another case.
    pub(super) fn plainer(&self, factor: Factor) -> Option<Self> {
        let mut plainer = self.clone();
        plainer.levels[factor as usize] = 0;
        Some(plainer.repaired()).filter(|plainer| plainer != self)
    }

    fn set(&mut self, factor: Factor, level: &str) {
        let place = FACTORS[factor as usize].1.iter().position(|found| *found == level);
        self.levels[factor as usize] = place.expect("a level of the factor");
    }

    pub(super) fn is(&self, factor: Factor, levels: &[&str]) -> bool {
        levels.contains(&&self[factor])
    }

    /// Returns whether the case estimates whole windows instead of summing moments.
    pub(super) fn estimates(&self) -> bool {
        self.levels[F::Method as usize] >= MOMENTS
    }

    pub(super) fn discovers(&self) -> bool {
        self.is(F::Keys, &["discovered"])
    }

    pub(super) fn estimates_means(&self) -> bool {
        (MOMENTS..MOMENTS + MEANS).contains(&self.levels[F::Method as usize])
    }

    /// Returns whether timing affects the release. Of duplicates in two sources, the one read first
    /// counts: with its values, where those are private, and with its position, which determines
    /// which records of an entity count and the order of a window.
    pub(super) fn races(&self) -> bool {
        let order_matters = self.estimates()
            || self.is(F::Neighbours, &["replace-one-in-place"])
            || self.is(F::Unit, &["entity"]);
        order_matters && self.is(F::Source, &["two sources"]) && self.is(F::Copies, &["by id"])
    }

    /// Makes the levels compatible.
    fn repaired(mut self) -> Self {
        // Estimators and public keys need a list.
        let needs_list = self.estimates()
            || self.is(F::Strategy, &["comb-blt:2"])
            || self.is(F::Neighbours, &["replace-one-in-place"]);
        if needs_list && self.discovers() {
            self.set(F::Keys, "three");
        }
        if self.estimates() {
            self.set(F::Sent, "none");
            if self.is(F::Method, &["resilience"]) {
                // It protects one record of an entity in a window.
                self.set(F::Limits, "1/1/1");
            }
            if self.estimates_means() || self.is(F::Neighbours, &["replace-one"]) {
                self.set(F::Neighbours, "replace-one-in-place");
            }
            // Tukey depths in three columns take a step for each pair of records.
            if self.is(F::Columns, &["1"]) || self.is(F::Method, &["tukey"]) {
                self.set(F::Columns, "2");
            }
            for factor in [F::Strategy, F::Moments, F::ClipNorm, F::Missing, F::Bounds, F::Histograms] {
                self.levels[factor as usize] = 0;
            }
        }
        if !self.estimates() {
            self.set(F::Windows, "each epoch");
        }
        // A delay line needs several participations.
        if self.is(F::Strategy, &["comb-blt:2"]) {
            self.set(F::Unit, "entity");
            if self.is(F::Limits, &["1/1/1"]) {
                self.set(F::Limits, "2/1/1");
            }
        }
        if self.is(F::Unit, &["record"]) {
            self.levels[F::Limits as usize] = 0;
            self.levels[F::Sent as usize] = 0;
        }
        if self.discovers() {
            self.set(F::Sent, "none");
        }
        if self.is(F::Clock, &["event-time"]) && !self.is(F::Neighbours, &["replace-one-in-place"]) {
            self.set(F::Clock, "arrival");
        }
        if !self.is(F::Clock, &["arrival", "late folded", "late dropped"]) {
            self.set(F::Jump, "any");
        }
        if !self.is(F::Clock, &["late dropped", "end-of-input"]) {
            self.set(F::Copies, "none");
        }
        // The text is the name of the entity or the id, where that has no other role. Texts have no
        // mean.
        let is_free = !self.is(F::Copies, &["by id"]) && !self[F::Limits].ends_with("average");
        let has_text = !self.is(F::Unit, &["entity"]) || is_free;
        if !has_text && self.is(F::Histograms, &["bins and values"]) {
            self.set(F::Histograms, "bins");
        }
        if !self.is(F::Method, &["jme"]) && self.is(F::Moments, &["none"]) {
            self.set(F::Moments, "diagonal");
        }
        if !self.is(F::Method, &["jme", "ime", "cs"]) || self.is(F::Moments, &["none"]) {
            self.set(F::Second, "same");
        }
        if self.is(F::Method, &["pp", "joint-clip"]) {
            self.set(F::Missing, "skip");
        }
        if self.is(F::Missing, &["by column"]) && self.is(F::Columns, &["1"]) {
            self.set(F::Columns, "2");
        }
        if !self.is(F::Keys, &["three"]) {
            self.set(F::Bounds, "columns");
        }
        if self.is(F::Restart, &["killed"]) && self.is(F::Clock, &["end-of-input"]) {
            self.set(F::Restart, "torn");
        }
        if self.is(F::Restart, &["killed"]) && !self.is(F::Source, &["stdin", "journal"]) {
            self.set(F::Source, "stdin");
        }
        if self.is(F::Restart, &["grown", "torn"]) && self.is(F::Source, &["stdin", "journal"]) {
            self.set(F::Source, "file");
        }
        if self.is(F::Watch, &["metrics"]) && !self.is(F::Source, &["stdin", "journal"]) {
            self.set(F::Source, "stdin");
            if self.is(F::Restart, &["grown", "torn"]) {
                self.set(F::Restart, "none");
            }
        }
        if self.is(F::Source, &["two sources"]) && self.is(F::Clock, &["records"]) {
            self.set(F::Source, "two files");
        }
        // The text of CSV is what servers hold.
        if self.is(F::Source, &STORES) {
            self.set(F::Format, "csv");
        }
        if self.is(F::Rows, &["ranges"]) && !self.is(F::Source, &["two files"]) {
            self.set(F::Source, "file");
        }
        if self.is(F::Rows, &["many", "ranges"]) {
            self.set(F::Horizon, "4");
        } else if self.is(F::Jump, &["back"]) {
            // They would be most rows, and no run would begin.
            self.set(F::Jump, "any");
        }
        self.levels[F::Claim as usize] %= self.claims().len();
        self
    }

    pub(super) fn number(&self, factor: Factor) -> usize {
        self[factor].parse().expect("a level that is a number")
    }

    /// Participations k, separation b and records at once m of an entity.
    pub(super) fn limits(&self) -> [usize; 3] {
        let limits = self[F::Limits].split(' ').next().expect("a word");
        let mut numbers = limits.split('/').map(|number| number.parse().expect("a number"));
        [(); 3].map(|()| numbers.next().expect("three numbers"))
    }

    /// The neighbours of the guarantee.
    pub(super) fn guarantee(&self) -> Relation {
        let neighbours = match &self[F::Neighbours] {
            "replace-one" => Neighbours::ReplaceOne,
            "zero-out" => Neighbours::ZeroOut,
            _ => Neighbours::ReplaceOneInPlace,
        };
        Relation { entities: self.is(F::Unit, &["entity"]), neighbours }
    }

    /// All neighbours that the ledger converts the guarantee to, with the number of times that it
    /// charges; its own come first.
    fn claims(&self) -> Vec<(Relation, u32)> {
        let own = self.guarantee();
        let all = [false, true].into_iter().flat_map(|entities| {
            let kinds = [Neighbours::ReplaceOne, Neighbours::ZeroOut, Neighbours::ReplaceOneInPlace];
            kinds.map(|neighbours| Relation { entities, neighbours })
        });
        let claims = [own].into_iter().chain(all.filter(|wanted| *wanted != own));
        claims.filter_map(|wanted| Some((wanted, own.steps_to(wanted)?))).collect()
    }

    /// The neighbour relation of this case's two worlds, with the number of times that the ledger
    /// charges.
    pub(super) fn claim(&self) -> (Relation, u32) {
        self.claims()[self.levels[F::Claim as usize]]
    }

    /// Every two of its levels.
    fn pairs(&self) -> impl Iterator<Item = [(usize, usize); 2]> + '_ {
        let all = || self.levels.iter().copied().enumerate();
        all().flat_map(move |one| all().skip(one.0 + 1).map(move |other| [one, other]))
    }
}

/// Candidates from which a case is chosen.
const CANDIDATES: usize = 24;

/// Chooses `number` cases. In a few hundred of them every two compatible levels occur together.
pub(super) fn cases(number: usize, seed: u64) -> Vec<Case> {
    let mut random = Random(seed);
    let mut covered = HashSet::new();
    let mut cases = Vec::with_capacity(number);
    while cases.len() < number {
        let candidates = (0..CANDIDATES).map(|_| Case::random(&mut random));
        let new = |case: &Case| case.pairs().filter(|pair| !covered.contains(pair)).count();
        let best = candidates.max_by_key(new).expect("candidates");
        covered.extend(best.pairs());
        cases.push(best);
    }
    cases
}

#[test]
fn every_compatible_pair_of_levels_occurs() {
    let mut random = Random(1);
    let possible: HashSet<_> =
        (0..20_000).flat_map(|_| Case::random(&mut random).pairs().collect::<Vec<_>>()).collect();
    let covered: HashSet<_> = cases(super::DEFAULT_CASES, super::SEED)
        .iter()
        .flat_map(|case| case.pairs().collect::<Vec<_>>())
        .collect();
    let missing: Vec<_> = possible.difference(&covered).collect();
    let words = |[one, other]: &[(usize, usize); 2]| {
        [one, other].map(|(factor, level)| format!("{:?} {}", FACTORS[*factor].0, FACTORS[*factor].1[*level]))
    };
    assert!(missing.is_empty(), "{:?}", missing.into_iter().map(words).collect::<Vec<_>>());
}

#[test]
fn every_estimator_is_tried() {
    let sorted = |mut names: Vec<&'static str>| {
        names.sort_unstable();
        names
    };
    let (means, covariances) = FACTORS[F::Method as usize].1[MOMENTS..].split_at(MEANS);
    assert_eq!(sorted(means.into()), sorted(mean::MeanMethod::ALL.map(mean::MeanMethod::name).into()));
    let names = covariance::CovarianceMethod::ALL.map(covariance::CovarianceMethod::name);
    assert_eq!(sorted(covariances.into()), sorted(names.into()));
}

#[test]
fn every_strategy_is_tried() {
    let keyword = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
    let tried: HashSet<_> = FACTORS[F::Strategy as usize].1.iter().map(|name| keyword(name)).collect();
    let running = KINDS.iter().filter(|kind| kind.can_run());
    let missing = running.map(|kind| keyword(&kind.usage())).filter(|name| !tried.contains(name));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn cases_can_be_run_by_name() {
    for case in cases(50, 3) {
        assert_eq!(Case::named(&case.to_string()), case);
    }
}
