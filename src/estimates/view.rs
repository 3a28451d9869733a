//! Views: a workload over the releases, the estimate to show, and the section `[[views]]`.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use hushflow_mechanism::estimate::intervals::{Confidence, IntervalSubject};
use hushflow_mechanism::estimate::projection::Projection;
use hushflow_mechanism::mechanism::Method;
use hushflow_mechanism::view::SquareBias;
use hushflow_mechanism::workload::Workload;

use super::{ESTIMATORS, EstimatorKind, HistogramNeed, LogFacts, ViewEstimator, moments};
use crate::document::Section;
use crate::document::definition::{
    FieldDefinition, FieldGroup, FieldType, GroupTest, Range, SectionDefinition, ValueForm, Word, forms, word,
};
use crate::strategies::matrix::read_workload;
use crate::strategies::schedule::LearningRates;

pub(crate) static VIEW: SectionDefinition = SectionDefinition {
    heading: "[[views]]",
    about: "What readers see of the log. Views cost no privacy and may change between runs.",
    fields: &[
        FieldDefinition::required("name", FieldType::Text, "\"last week\"", "Name of the view."),
        FieldDefinition::optional(
            "workload",
            FieldType::Forms(all_workloads),
            "required, unless the estimate has workloads of its own",
            "\"window:7\"",
            "How epochs are weighted.",
        ),
        FieldDefinition::optional(
            "schedule",
            FieldType::Forms(schedules),
            "all steps weigh the same",
            "\"cosine:10\"",
            "Learning rates that weigh the steps of `prefix` or `momentum`, as training has them.",
        ),
        FieldDefinition::optional(
            "estimate",
            FieldType::Words(|| ESTIMATORS.iter().map(EstimatorKind::form).collect()),
            "gaussian, or moments where releases hold no second moments of records",
            "\"moments\"",
            "What is computed from the weighted sums.",
        ),
        FieldDefinition::optional(
            "squares",
            FieldType::Words(|| forms(SQUARES)),
            "debiased",
            "\"raw\"",
            "Whether squares of noisy sums keep the bias of the noise, for `method = \"pp\"`.",
        ),
        FieldDefinition::with_default(
            "covariance",
            FieldType::Words(|| forms(PROJECTIONS)),
            "\"floor\"",
            "\"shrink\"",
            "How a noisy estimate becomes a covariance.",
        ),
        FieldDefinition::with_default(
            "keys",
            FieldType::Words(|| forms(KEYS)),
            "\"each\"",
            "\"total\"",
            "Whether the view shows each key or the sum over all keys.",
        ),
        FieldDefinition::with_default(
            "level",
            FieldType::Number(Range::SHARE),
            "0.95",
            "0.99",
            "Confidence level of the intervals.",
        ),
        FieldDefinition::with_default(
            "joint",
            FieldType::Flag,
            "false",
            "true",
            "Whether the intervals of a line hold jointly, instead of each on its own.",
        ),
        FieldDefinition::with_default(
            "population",
            FieldType::Flag,
            "false",
            "true",
            "Whether intervals cover the population from which the records are a sample, instead of the records that counted.",
        ),
        FieldDefinition::with_default(
            "missing_at_random",
            FieldType::Flag,
            "false",
            "true",
            "Whether correlations and regressions assume that values are missing at random, for `missing = \"by-column\"`.",
        ),
    ],
    groups: || {
        let estimators = ESTIMATORS.iter().filter(|estimator| !estimator.fields.is_empty());
        let group = |estimator: &EstimatorKind| FieldGroup {
            of: format!("estimate = {:?}", estimator.name),
            only: GroupTest::Word {
                key: "estimate",
                words: vec![estimator.name.into()],
                is_default: ["gaussian", "moments"].contains(&estimator.name),
            },
            fields: estimator.fields,
        };
        estimators.map(group).collect()
    },
    one_of: || {
        let own = ESTIMATORS.iter().filter(|estimator| estimator.own_workloads);
        let own = own.map(|estimator| format!("estimate = {:?}", estimator.name));
        ["workload".into()].into_iter().chain(own).collect()
    },
    ..SectionDefinition::EMPTY
};

const SQUARES: &[Word<SquareBias>] = &[
    word("debiased", SquareBias::Removed, "The variance of the noise is subtracted."),
    word("raw", SquareBias::Kept, "Squares are too large, and never negative."),
];

const PROJECTIONS: &[Word<Projection>] = &[
    word("floor", Projection::Floor, "Eigenvalues are raised to the noise of their direction."),
    word("nearest", Projection::Nearest, "The nearest positive semi-definite matrix."),
    word("shrink", Projection::Shrink, "Correlations shrink by their share of noise, then as floor."),
    word("raw", Projection::Raw, "Unbiased, but no covariance where eigenvalues are negative."),
];

const KEYS: &[Word<bool>] = &[
    word("each", false, "A line for each key."),
    word("total", true, "One line for the sum over all keys, called `all`."),
];

/// Returns all workloads and their definitions.
pub(crate) fn all_workloads() -> Vec<ValueForm> {
    let file = (
        "matrix:PATH",
        "Sum of the epochs so far with the weights in row t of a lower-triangular matrix: a CSV file without header, \
         with a row and a column for each epoch.",
    );
    let forms = Workload::FORMS.iter().copied().chain([file]);
    forms.map(|(usage, about)| ValueForm { usage: usage.into(), about }).collect()
}

/// Returns all schedules and their definitions.
pub(crate) fn schedules() -> Vec<ValueForm> {
    LearningRates::FORMS.iter().map(|&(usage, about)| ValueForm { usage: usage.into(), about }).collect()
}

/// A workload over the releases. Views cost no privacy and may change between runs.
#[derive(Clone, Debug)]
pub struct EstimateView {
    /// Name of the view.
    pub name: String,
    /// The workload: the first one of an estimator that has its own.
    pub workload: Workload,
    /// The estimator.
    pub estimator: Arc<dyn ViewEstimator>,
    /// `squares`: whether squares of noisy sums keep their bias, for method pp.
    pub squares: SquareBias,
    /// `covariance`: how a noisy estimate is turned into a covariance.
    pub covariance: Projection,
    /// Its confidence intervals.
    pub intervals: Intervals,
    /// `keys = "total"`: shows the sum over all keys instead of each key.
    pub total: bool,
}

impl EstimateView {
    /// Returns the default name of a view of this workload.
    pub fn default_name(workload: &Workload) -> String {
        if *workload == Workload::Prefix { "so far".into() } else { workload.to_string() }
    }

    /// Returns the workload of a view: the first of its estimator's own, or the chosen one, or that
    /// of the release.
    ///
    /// # Errors
    /// A workload is chosen for an estimator with workloads of its own, or a matrix has too few
    /// rows.
    pub fn workload_of(
        estimator: &dyn ViewEstimator,
        chosen: Option<Workload>,
        released: &Workload,
        log: &LogFacts<'_>,
    ) -> Result<Workload, String> {
        chosen.as_ref().map_or(Ok(()), |chosen| log.check_workload(chosen))?;
        match (estimator.decays(), chosen) {
            (Some(_), Some(_)) => Err(OWN_WORKLOADS.into()),
            (Some([first, _]), None) => Ok(Workload::Adam(first)),
            (None, chosen) => Ok(chosen.unwrap_or_else(|| released.clone())),
        }
    }

    /// Returns a view of each key, with default settings and the default estimator of the log.
    pub fn new(workload: Workload, log: &LogFacts<'_>) -> Self {
        EstimateView {
            name: Self::default_name(&workload),
            workload,
            estimator: EstimatorKind::default_of(log)
                .from_flag("", log)
                .unwrap_or_else(|_| moments::estimator()),
            squares: SquareBias::default(),
            covariance: Projection::default(),
            intervals: Intervals::default(),
            total: false,
        }
    }

    /// Returns the confidence of its intervals at an epoch.
    pub(super) fn confidence(&self, epoch: u64) -> Confidence {
        let Intervals { level, joint, population, .. } = self.intervals;
        let subject = match population {
            true => IntervalSubject::Population { heaviest: self.workload.largest_coefficient(epoch) },
            false => IntervalSubject::Records,
        };
        Confidence { level, joint, subject }
    }
}

/// Confidence intervals of a view.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Intervals {
    /// `level`: coverage probability, between 0 and 1.
    pub level: f64,
    /// `joint`: whether the intervals of a line hold jointly or individually.
    pub joint: bool,
    /// `population`: whether intervals cover the population from which records are drawn, or the
    /// records.
    pub population: bool,
    /// `missing_at_random`: whether correlations and regressions by column assume that values are
    /// missing at random.
    pub missing_at_random: bool,
}

impl Default for Intervals {
    fn default() -> Self {
        let Confidence { level, joint, .. } = Confidence::default();
        Intervals { level, joint, population: false, missing_at_random: false }
    }
}

impl Intervals {
    /// Returns the half-width of the plain interval of a count, in standard deviations of its
    /// noise.
    pub fn count_reach(&self) -> f64 {
        Confidence { level: self.level, ..Confidence::default() }.normal_quantile()
    }

    /// Returns the word for the target of the intervals.
    pub fn about(&self) -> &'static str {
        if self.population { "population" } else { "counted-records" }
    }

    /// States the target of the intervals, and whether all intervals of `whole` hold jointly.
    pub(super) fn promise(&self, whole: &str) -> String {
        let subject =
            if self.population { "the population of the records" } else { "the records that counted" };
        let together = if self.joint { format!("all of {whole} together") } else { "each on its own".into() };
        format!("{subject}, {together}")
    }

    /// Explains ± in a table, and the mark of hidden correlations.
    pub(super) fn legend(&self, has_correlations: bool) -> String {
        let of_correlations = if has_correlations { "; -: hidden by noise" } else { "" };
        format!(
            "half-width of the {} % confidence interval for {} (a to b: its ends){of_correlations}",
            self.level * 100.0,
            self.promise("a line")
        )
    }
}

/// Reads `[[views]]`; without any, one view of the workload of the release. Paths are from `base`.
pub(crate) fn views(
    root: &Section<'_>,
    base: &Path,
    released: &Workload,
    log: &LogFacts<'_>,
) -> Option<Vec<EstimateView>> {
    let mut names = HashSet::new();
    let sections = root.sections("views").into_iter();
    let views: Vec<_> = sections.map(|section| view(&section, base, &mut names, log)).collect();
    if views.is_empty() {
        return Some(vec![EstimateView::new(released.clone(), log)]);
    }
    views.into_iter().collect()
}

fn view<'a>(
    section: &Section<'a>,
    base: &Path,
    names: &mut HashSet<&'a str>,
    log: &LogFacts<'_>,
) -> Option<EstimateView> {
    let name = section.required_text("name");
    if let Some(name) = name.as_ref().filter(|name| !names.insert(name.value)) {
        name.report(format!("the view {:?} is named twice: change one name", name.value));
    }
    let kind = estimator_kind(section, log);
    let estimator = kind.and_then(|kind| (kind.read)(section, log));
    let workload = match kind {
        Some(kind) if kind.own_workloads => {
            section.refuse("workload", OWN_WORKLOADS);
            section.refuse("schedule", OWN_WORKLOADS);
            None
        }
        _ => section.required_text("workload").and_then(|field| {
            field.map(|text| {
                let workload = read_workload(text, base).map_err(|error| error.to_string())?;
                log.check_workload(&workload).map(|()| workload)
            })
        }),
    };
    let workload = workload.map(|field| field.value).map(|workload| scheduled(section, base, workload, log));
    let squares = section.word("squares", SQUARES);
    if log.method != Method::Pp {
        section.refuse("squares", "only method = \"pp\" squares noisy sums: leave it out");
    }
    if !log.by_column {
        section.refuse(
            "missing_at_random",
            "only missing = \"by-column\" divides numbers of different rows: leave it out",
        );
    }
    let covariance = section.word("covariance", PROJECTIONS).unwrap_or_default();
    let intervals = intervals(section);
    let total = total(section, log);
    section.finish(estimator.is_some());
    let estimator = estimator?;
    let workload = match estimator.decays() {
        Some([first, _]) => Workload::Adam(first),
        None => workload?,
    };
    Some(EstimateView {
        name: name?.value.into(),
        workload,
        estimator,
        squares: squares.unwrap_or_default(),
        covariance,
        intervals,
        total,
    })
}

/// Weights the steps of a workload by the schedule of the view, if it has one.
fn scheduled(section: &Section<'_>, base: &Path, workload: Workload, log: &LogFacts<'_>) -> Workload {
    let Some(schedule) = section.text("schedule").filter(|_| log.epochs > 0) else { return workload };
    let weigh = |text: &&str| LearningRates::weigh(text, base, &workload, log.epochs);
    let weighted = schedule.map(|text| weigh(text).map_err(|error| error.to_string()));
    weighted.map_or(workload, |field| field.value)
}

/// Reads the name of the estimator.
fn estimator_kind(view: &Section<'_>, log: &LogFacts<'_>) -> Option<&'static EstimatorKind> {
    let Some(field) = view.get("estimate") else { return Some(EstimatorKind::default_of(log)) };
    let words: Vec<_> =
        ESTIMATORS.iter().map(|estimator| word(estimator.name, estimator, estimator.help)).collect();
    let estimator = view.word("estimate", &words)?;
    if let Some((what, so)) = estimator.lacks(log) {
        let remedy = match estimator.histograms {
            HistogramNeed::None => {
                "change second_moments and method (pp has second moments of records only with records = 1)"
            }
            _ => "add one of [[histograms]]",
        };
        field.report(format!("no {what} are released, {so}: choose estimate = \"moments\", or {remedy}"));
    }
    Some(estimator)
}

/// Returns whether a view shows the total over keys.
fn total(view: &Section<'_>, log: &LogFacts<'_>) -> bool {
    let total = view.word("keys", KEYS).unwrap_or(false);
    if let (true, Some(field)) = (total, view.get("keys")) {
        if !log.keyed {
            field.report("there is no [key], so every view covers all records: leave it out");
        } else if log.method == Method::Pp {
            field.report(NO_TOTALS);
        } else if log.key_bounds {
            field.report(KEY_BOUNDS);
        }
    }
    total
}

fn intervals(view: &Section<'_>) -> Intervals {
    let default = Intervals::default();
    let level = view.number("level");
    Intervals {
        level: level.map_or(default.level, |level| level.value),
        joint: view.flag("joint").unwrap_or(default.joint),
        population: view.flag("population").unwrap_or(default.population),
        missing_at_random: view.flag("missing_at_random").unwrap_or(default.missing_at_random),
    }
}

const OWN_WORKLOADS: &str = "this estimate has workloads of its own: leave it out";

const KEY_BOUNDS: &str = "keys have bounds of their own ([columns.bounds]), so their sums have different units and no total: leave it out";

const NO_TOTALS: &str = "with method = \"pp\", second moments are squares of the sums of each key, and squares don't add up to the \
    square of a total: leave it out, or choose method = \"jme\"";
