//! `hushflow audit`: runs the mechanism of a pipeline file on neighbouring streams and tries to
//! tell them apart.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Args;
use hushflow::mechanism::accounting::{Delta, Epsilon};
use hushflow::mechanism::audit::{
    AuditClaim, AuditFinding, AuditSettings, Canary, RealPath, Violation, audit, canaries,
};
use hushflow::mechanism::mechanism::{MatrixMechanism, Method};
use hushflow::mechanism::participation::Participation;
use hushflow::mechanism::sensitivity::Neighbours;
use hushflow::pipeline::Pipeline;
use hushflow::publication::{MomentPublication, PublicationError, WindowPublication, chosen};
use serde::Serialize;

use super::output::{ProgressCounter, SearchStatus};
use super::output::{number, print_json, print_wrapped, table};
use super::{CliError, number_in, thousands};

mod windows;

/// Default number of epochs.
const EPOCHS: u64 = 64;

/// Maximum number of epochs: placing the canaries compares all pairs of epochs.
const MAX_EPOCHS: u64 = 1024;

/// Arguments of `hushflow audit`.
#[derive(Debug, Args)]
#[command(after_help = "\
The audit reads no data and spends no budget. It takes the mechanism from the pipeline file and generates its own streams, \
called canaries: pairs of streams that differ in one record and are as far apart as such pairs can be. Each pair goes many \
times through the real code path (clip, sum, encode, exact noise, with crashes and restarts between epochs). From the \
release, the audit guesses which stream of the pair it was. The share of correct guesses gives a lower bound on ε.

Columns of the table:
  distance   distance of the pair as a share of the largest that
             neighbours may have; computed in integers, not estimated
  ε at least lower bound on ε for a mechanism of Gaussian
             differential privacy, on which the claim is based
  of any     lower bound on ε for any (ε, δ)-private mechanism; it needs
             far more than 1/δ runs to be tight
  share      lower bound on ε as a share of the claimed ε: 90 % or more
             shows that the claim is tight
  odd        share of released integers whose lowest bit is set: 50 %
             unless the noise is not integer noise

For a file that releases estimates of windows there is one pair: a unit with records as far apart as the estimator lets \
them be, in all windows that hold it. The share is smaller, because an estimator spends its budget on several steps.

An audit that finds nothing is not a proof. It tries only these pairs, while proofs cover all. It covers the first --epochs \
epochs. It knows the columns, keys and noise of this file, but not your source, disk or network. It does test that the \
running code is what was proved: it finds planted faults such as half of the noise, 2 % too little noise, noise used \
twice, a clipper that lets through one part in a million too much, and floating-point noise.

The share falls with fewer runs and with smaller ε: n runs underestimate μ = 1/σ by about 14/√n.

Exit status: 0 no canary exceeds the claim, 3 a canary does, 1 failure, 2 wrong usage or a bad pipeline file. The \
probability that a correct mechanism is accused is at most 1 − confidence.

Examples:
  hushflow audit examples/flights.toml
  hushflow audit examples/flights.toml --runs 10000000 --confidence 0.999999 --json")]
pub(crate) struct AuditArguments {
    /// The pipeline file
    pipeline: PathBuf,
    /// Runs of each canary, half of them with each stream [default: 1000000; for estimates of
    /// windows 20000]
    #[arg(long, short = 'n', value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(AuditSettings::LEAST_TRIALS..))]
    runs: Option<u64>,
    /// Joint confidence of all bounds
    #[arg(long, short, value_name = "C", default_value_t = 0.999, allow_hyphen_values = true)]
    #[arg(value_parser = number_in(confidence))]
    confidence: f64,
    /// Epochs to run; with fewer than the horizon, the share is smaller [default: 64, or the
    /// horizon]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_EPOCHS))]
    epochs: Option<u64>,
    /// How often a record or entity takes part, as in plan; the noise is calibrated for it
    /// [default: as in the file]
    #[arg(long, value_name = "KxB", allow_hyphen_values = true)]
    participation: Option<Participation>,
    /// For estimates of windows: rows of one key in an epoch [default: enough for no window to be
    /// refused]
    #[arg(long, value_name = "R", value_parser = records)]
    records: Option<usize>,
    /// Print one JSON object, with all digits
    #[arg(long)]
    json: bool,
}

/// Default number of runs.
const RUNS: u64 = 1_000_000;

fn records(text: &str) -> Result<usize, &'static str> {
    let records = text.parse().ok().filter(|records| (1..=1 << 24).contains(records));
    records.ok_or("expected a whole number from 1 to 16777216")
}

fn confidence(value: f64) -> Result<f64, &'static str> {
    if (0.5..1.0).contains(&value) { Ok(value) } else { Err("expected at least 0.5 and below 1") }
}

/// The claim and the findings.
#[derive(Debug, Serialize)]
struct AuditReport {
    name: String,
    epsilon: f64,
    delta: f64,
    noise_multiplier: f64,
    mu: f64,
    neighbours: Neighbours,
    method: Method,
    strategy: String,
    participation: Participation,
    horizon: u64,
    epochs: u64,
    runs: u64,
    confidence: f64,
    /// Whether no canary exceeds the claim.
    ok: bool,
    /// Largest share of the claimed ε that a canary reached.
    share: f64,
    canaries: Vec<AuditFinding>,
}

/// Audits and prints the findings; fails if the claim is exceeded.
pub(crate) fn execute(arguments: &AuditArguments) -> Result<(), CliError> {
    let pipeline = Pipeline::load(&arguments.pipeline)?;
    if let Some(publication) = WindowPublication::new(pipeline.public_parameters(), true)? {
        return windows::execute(arguments, &publication);
    }
    if arguments.records.is_some() {
        return Err(CliError::usage(
            "--records is for estimates of windows, and this file releases moments: leave it out",
        ));
    }
    if pipeline.discovery().is_some() {
        return Err(PublicationError::AuditDiscovery.into());
    }
    if pipeline.training.as_ref().is_some_and(|training| !training.sampling.is_public()) {
        return Err(PublicationError::AuditSampling.into());
    }
    let of_file = pipeline.public_parameters().participation();
    let participation = arguments.participation.unwrap_or(of_file);
    let (publication, mechanism) = mechanism(&pipeline, participation, of_file)?;
    let claim = claim(&publication)?;
    let epochs = arguments.epochs.unwrap_or(EPOCHS).min(publication.horizon());
    let audited = AuditClaim::new(&mechanism, participation, epochs, publication.keys(), claim)?;
    let canaries = canaries(&audited)?;
    let settings = AuditSettings {
        trials: arguments.runs.unwrap_or(RUNS),
        false_alarm: 1.0 - arguments.confidence,
        canaries: canaries.len(),
    };
    let findings = audit_all(&audited, &canaries, &settings)?;
    let report = report(arguments, participation, &publication, &audited, findings);
    if arguments.json { print_json(&report) } else { print_wrapped(&report.text()) }?;
    if report.ok { Ok(()) } else { Err(CliError::exceeded("a canary reveals more than the claim allows")) }
}

fn report(
    arguments: &AuditArguments,
    participation: Participation,
    publication: &MomentPublication,
    audited: &AuditClaim,
    findings: Vec<AuditFinding>,
) -> AuditReport {
    let parameters = publication.parameters();
    AuditReport {
        name: parameters.name.clone(),
        epsilon: audited.epsilon.value(),
        delta: audited.delta.value(),
        noise_multiplier: audited.mu().recip(),
        mu: audited.mu(),
        neighbours: parameters.privacy.neighbours,
        method: parameters.release.method,
        strategy: publication.calibration().strategies.to_string(),
        participation,
        horizon: publication.horizon(),
        epochs: audited.epochs,
        runs: arguments.runs.unwrap_or(RUNS),
        confidence: arguments.confidence,
        ok: findings.iter().all(|finding| finding.violations.is_empty()),
        share: findings.iter().map(|finding| finding.share(audited.epsilon)).fold(0.0, f64::max),
        canaries: findings,
    }
}

/// Returns the mechanism of a run of the file. With --participation, its noise is scaled to that
/// sensitivity at the same noise multiplier.
fn mechanism(
    pipeline: &Pipeline,
    participation: Participation,
    of_file: Participation,
) -> Result<(MomentPublication, MatrixMechanism), CliError> {
    let bar = SearchStatus::new();
    let chosen = chosen(pipeline, &mut |progress| bar.update(progress)).map_err(PublicationError::Search)?;
    bar.finish();
    let publication =
        MomentPublication::calibrate_chosen(pipeline.public_parameters(), chosen, true, &mut |_| ())?;
    let single = publication.mechanism().as_ref().clone();
    if participation == of_file {
        return Ok((publication, single));
    }
    let (parameters, strategies) = (*single.moments().parameters(), single.strategies().clone());
    let horizon = publication.horizon();
    let mechanism = MatrixMechanism::with_participation(parameters, strategies, participation, horizon);
    Ok((publication, mechanism.map_err(PublicationError::Mechanism)?))
}

fn claim(publication: &MomentPublication) -> Result<(Epsilon, Delta), PublicationError> {
    let privacy = publication.parameters().privacy;
    Ok((Epsilon::new(privacy.epsilon)?, Delta::new(privacy.delta)?))
}

/// Audits canaries on all processors and returns the findings in order.
fn audit_all(
    audited: &AuditClaim,
    canaries: &[Canary],
    settings: &AuditSettings,
) -> Result<Vec<AuditFinding>, CliError> {
    let subject = RealPath::new(audited.mechanism.clone())?;
    let counter = ProgressCounter::new(settings.trials.saturating_mul(canaries.len() as u64), "runs");
    let next = AtomicUsize::new(0);
    let audit_some = || {
        let take = || {
            let index = next.fetch_add(1, Ordering::Relaxed);
            Some((index, canaries.get(index)?))
        };
        let audit = |(index, canary)| {
            let mut done = 0;
            let mut progress = |trials| counter.add(trials - std::mem::replace(&mut done, trials));
            Ok((index, audit(&subject, audited, canary, settings, &mut progress)?))
        };
        std::iter::from_fn(take).map(audit).collect::<Result<Vec<_>, CliError>>()
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(canaries.len());
    let mut found = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(audit_some)).collect();
        threads.into_iter().try_fold(Vec::new(), |mut all, thread| {
            all.extend(thread.join().map_err(|_| CliError::failed("a thread of the audit panicked"))??);
            Ok::<_, CliError>(all)
        })
    })?;
    counter.finish();
    found.sort_by_key(|(index, _)| *index);
    Ok(found.into_iter().map(|(_, finding)| finding).collect())
}

impl AuditReport {
    fn text(&self) -> String {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let titles = ["canary", "distance", "ε at least", "of any", "share", "odd", ""];
        let row = |finding: &AuditFinding| {
            let most_uneven =
                finding.odd.iter().copied().max_by(|a, b| (a - 0.5).abs().total_cmp(&(b - 0.5).abs()));
            vec![
                finding.canary.to_string(),
                percent(finding.distance / self.mu),
                number(finding.epsilon),
                number(finding.epsilon_of_any),
                percent(finding.epsilon.max(finding.epsilon_of_any) / self.epsilon),
                percent(most_uneven.unwrap_or_default()),
                finding.violations.iter().map(violation_text).collect::<Vec<_>>().join("; "),
            ]
        };
        let rows = std::iter::once(titles.map(String::from).to_vec()).chain(self.canaries.iter().map(row));
        let verdict = match self.ok {
            true => format!(
                "No canary exceeds the claim; ε is at least {} of the claimed one.\n",
                percent(self.share)
            ),
            false => "THE CLAIM IS EXCEEDED.\n".into(),
        };
        let once =
            if self.participation.is_single() { String::new() } else { format!(", {}", self.participation) };
        format!(
            "{}: (ε, δ) = ({}, {}) is claimed, with a noise multiplier of {}, for {} neighbours{once}\n{} by {} over {} \
             of {} epochs; {} runs of each canary, confidence {}\n\n{}\n{verdict}",
            self.name,
            number(self.epsilon),
            number(self.delta),
            number(self.noise_multiplier),
            self.neighbours,
            self.method,
            self.strategy,
            thousands(self.epochs),
            thousands(self.horizon),
            thousands(self.runs),
            self.confidence,
            table(&rows.collect::<Vec<_>>()),
        )
    }
}

fn violation_text(violation: &Violation) -> &'static str {
    match violation {
        Violation::Distance => "TOO FAR APART",
        Violation::Noise => "TOO LITTLE NOISE",
        Violation::Grid => "NO INTEGER NOISE",
    }
}
