//! The neighbour oracle: the real binary over generated pairs of neighbouring inputs.
//!
//! Proofs speak of integers. What leaks is often something else: a width, a counter, an exit code, a line of the log, a row that
//! counts twice after a restart. So the oracle knows nothing of how hushflow works. It runs the binary in two worlds that are
//! neighbours by what docs/privacy.md and docs/entities.md promise, and compares what anyone may see:
//!
//! - **What is released.** Both worlds draw the same noise (`[simulation] seed`), so it cancels, and Σ(Δy/σ)² is known exactly. It is
//!   at most what `hushflow ledger` charges, for every adjacency that the ledger converts the guarantee to. The σ are those of
//!   the public header; [`drawn`] checks that the noise which is drawn has them.
//! - **Everything else that is public** is identical: exit codes, standard error at every `--log` level, the shape of standard
//!   output, public metrics, the number and order of frames, the bytes around their values, the files of the state directory and
//!   the sizes of the public ones, and the ledger's entry.
//!
//! | file | subject |
//! |---|---|
//! | `factors` | what cases differ in, and which are tried |
//! | `pipeline`, `rows` | the pipeline file and the rows of a case |
//! | `pairs` | neighbours |
//! | `world` | runs, kills, restarts |
//! | `public` | what anyone may see |
//! | `distance` | how far apart releases are |
//! | `drawn` | whether the noise that is drawn is the noise that the header stands for |
//!
//! **What it does not cover.** Estimators of windows choose by the data which noise is drawn where, so their noise does not cancel:
//! of them everything public but the estimates is compared. What a reader could learn from time, load and the operator's private
//! counters is not looked at. Brokers and sockets have tests of their own.
//!
//! `HUSHFLOW_ORACLE_CASES=100000 cargo test --test system oracle` tries more, `HUSHFLOW_ORACLE_SEED` others, and
//! `HUSHFLOW_ORACLE_CASE=NAME` one again, by the name that a failure prints.

mod distance;
mod drawn;
mod factors;
mod pairs;
mod pipeline;
mod public;
mod rows;
mod world;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use factors::{Case, FACTORS, cases};
use pairs::{Pair, pair};
use tempfile::TempDir;
use world::World;

/// Cases of a usual run.
const USUAL: usize = 600;

/// Where the choice of cases begins.
const SEED: u64 = 19;

/// How long it may take to find a plainer case that fails as well.
const SHRINKING: Duration = Duration::from_secs(20);

/// A difference between neighbours that is larger than what is promised.
#[derive(Clone, Debug)]
struct Leak {
    /// What leaks.
    kind: String,
    detail: String,
}

/// What a pair of worlds came to: Σ(Δy/σ)² over what is charged, if there is such a distance, and what leaks.
struct Verdict {
    share: Option<f64>,
    leaks: Vec<Leak>,
}

/// Where strategies that are found once are kept for all cases.
fn saved_strategies() -> PathBuf {
    std::env::temp_dir().join("hushflow-oracle-strategies")
}

/// A folder in memory, where there is such a file system: states are synced for every commit.
fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.expect("a folder")
}

/// Runs both worlds of a case. Whatever breaks is a leak too.
fn verdict(case: &Case) -> Verdict {
    catch_unwind(|| compared(case)).unwrap_or_else(|panic| {
        let of_format = panic.downcast_ref::<String>().cloned();
        let detail = of_format.or_else(|| Some((*panic.downcast_ref::<&str>()?).to_owned()));
        let leak = Leak { kind: "broken".into(), detail: detail.unwrap_or_default() };
        Verdict { share: None, leaks: vec![leak] }
    })
}

fn compared(case: &Case) -> Verdict {
    let folder = folder();
    let pair = pair(case);
    let [one, other] =
        [0, 1].map(|which| World::seen(case, &pair, which, &folder.path().join(which.to_string())));
    let differences = one.facts.differences(&other.facts).into_iter();
    let leak = |(name, [one, other]): (&str, [&str; 2])| Leak {
        kind: format!("public: {name}"),
        detail: format!("one world: {one}\nthe other: {other}"),
    };
    let mut leaks: Vec<_> = differences.map(leak).collect();
    if let (Some(said), true) = (&one.facts.failure, leaks.is_empty()) {
        leaks.push(Leak { kind: "broken".into(), detail: said.clone() });
    }
    if case.estimates() {
        return Verdict { share: None, leaks };
    }
    let (claim, steps) = case.claim();
    let (squared, charged) = (distance::squared(&one, &other), distance::charged(&one, steps));
    let share = squared / charged;
    if share.is_nan() || share > 1.0 {
        let (distance, charged) = (squared.sqrt(), charged.sqrt());
        let detail = format!("{distance} where {charged} is charged, as {steps} steps of the guarantee");
        leaks.push(Leak {
            kind: format!("distance: {claim}, of a guarantee for {}", case.guarantee()),
            detail,
        });
    }
    Verdict { share: Some(share), leaks }
}

/// What leaks twice: whatever depends on time differs once in a while.
fn leaks(case: &Case) -> (Option<f64>, Vec<Leak>) {
    let Verdict { share, leaks } = verdict(case);
    if leaks.is_empty() {
        return (share, leaks);
    }
    let again = verdict(case).leaks;
    let twice = leaks.into_iter().filter(|leak| again.iter().any(|found| found.kind == leak.kind));
    (share, twice.collect())
}

/// A plainer case that leaks in the same way.
fn shrunk(case: &Case, kind: &str) -> Case {
    let deadline = Instant::now() + SHRINKING;
    let mut plainest = case.clone();
    for (factor, _) in FACTORS {
        let Some(plainer) = plainest.plainer(factor) else { continue };
        if Instant::now() < deadline && leaks(&plainer).1.iter().any(|leak| leak.kind == kind) {
            plainest = plainer;
        }
    }
    plainest
}

/// A failure as it is told.
fn report(case: &Case, leak: &Leak) -> String {
    let plain = shrunk(case, &leak.kind);
    let again = leaks(&plain).1.into_iter().find(|found| found.kind == leak.kind).unwrap_or(leak.clone());
    let Pair { worlds: [one, other], cut } = pair(&plain);
    let mut text = format!(
        "{}\n{}\ncase {case}, plainer {plain}: {}\n{}middle of the stream: {cut} of {} rows; the worlds differ in\n",
        leak.kind,
        again.detail,
        plain.words(),
        plain.pipeline(),
        one.len()
    );
    for (place, (one, other)) in one.iter().zip(&other).enumerate().filter(|(_, (one, other))| one != other) {
        let _ = writeln!(text, "row {place}:\n  {one:?}\n  {other:?}");
    }
    text
}

/// The number that an environment variable holds.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What a run of the oracle came to.
#[derive(Default)]
struct Findings {
    /// The largest share of what is charged, by claim, guarantee and method.
    shares: BTreeMap<String, f64>,
    /// A report and the names of all cases, by kind.
    leaks: BTreeMap<String, (String, Vec<String>)>,
}

/// Tries all cases on two threads.
fn tried(cases: &[Case]) -> Findings {
    let (next, findings) = (AtomicUsize::new(0), Mutex::new(Findings::default()));
    let one = |case: &Case| {
        let (share, leaks) = leaks(case);
        let mut found = findings.lock().unwrap();
        if let Some(share) = share.filter(|_| leaks.is_empty()) {
            let (guarantee, claim) = (case.guarantee(), case.claim().0);
            let method = &case[factors::Factor::Method];
            let largest = found.shares.entry(format!("{claim}, of {guarantee}, {method}")).or_insert(0.0);
            *largest = largest.max(share);
        }
        let Some(leak) = leaks.first() else { return };
        let (_, names) = found.leaks.entry(leak.kind.clone()).or_default();
        names.push(case.to_string());
        if names.len() == 1 {
            drop(found);
            let report = report(case, leak);
            findings.lock().unwrap().leaks.entry(leak.kind.clone()).or_default().0 = report;
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Relaxed)) {
                    one(case);
                }
            });
        }
    });
    findings.into_inner().unwrap()
}

#[test]
fn neighbours_are_as_far_apart_as_the_ledger_says_and_alike_in_all_else() {
    let seed = number("HUSHFLOW_ORACLE_SEED").unwrap_or(SEED);
    let wanted = number("HUSHFLOW_ORACLE_CASES");
    let cases = match std::env::var("HUSHFLOW_ORACLE_CASE") {
        Ok(names) => names.split(',').map(Case::named).collect(),
        Err(_) => cases(wanted.map_or(USUAL, |number| number as usize), seed),
    };
    let begun = Instant::now();
    let Findings { shares, leaks } = tried(&cases);
    if wanted.is_some() {
        let mut out = std::io::stdout();
        let _ = writeln!(out, "{} cases in {:?}", cases.len(), begun.elapsed());
        for (guarantee, share) in &shares {
            let _ = writeln!(out, "{share:.4}  {guarantee}");
        }
    }
    let told = |(kind, (report, names)): (&String, &(String, Vec<String>))| {
        format!("{} cases, {kind}: {}\n{report}", names.len(), names[..names.len().min(8)].join(","))
    };
    let told: Vec<_> = leaks.iter().map(told).collect();
    assert!(told.is_empty(), "{} kinds of leaks:\n\n{}", told.len(), told.join("\n"));
}
