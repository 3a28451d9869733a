//! Fields of `[release]`, for moments and for estimators of windows.

use hushflow_estimators::covariance::CovarianceMethod;
use hushflow_estimators::mean::MeanMethod;
use hushflow_mechanism::mechanism::Method;
use hushflow_mechanism::mechanism::method::DEFAULT_FIRST_MOMENT_SHARE;
use hushflow_mechanism::strategy::KINDS;

use crate::document::definition::{
    FieldDefinition as Field, FieldGroup, FieldType, GroupTest, Range, SectionDefinition, ValueForm, Word,
    forms, word,
};
use crate::document::rules::Fact::{Has, Is, IsNot, Lacks};
use crate::document::rules::Rule;
use crate::document::rules::WordSet::{Of, These};
use crate::estimates::{all_workloads, schedules};

/// Words of `method` that release moments.
pub(in crate::pipeline) const METHODS: &[Word<Method>] = &[
    word("jme", Method::Jme, "Joint moments: the second moments cost nothing beside the means."),
    word(
        "ime",
        Method::Ime { first_moment_share: DEFAULT_FIRST_MOMENT_SHARE },
        "Independent moments: the budget is split between means and second moments.",
    ),
    word("cs", Method::Cs, "Record and products concatenated, as one longer record."),
    word("pp", Method::Pp, "Second moments are squares of the noisy sums; for one record in an epoch."),
    word("joint-clip", Method::JointClip, "Record and products clipped together."),
];

fn methods() -> Vec<ValueForm> {
    let means =
        MeanMethod::ALL.map(|method| ValueForm { usage: method.name().into(), about: method.about() });
    let covariances =
        CovarianceMethod::ALL.map(|method| ValueForm { usage: method.name().into(), about: method.about() });
    forms(METHODS).into_iter().chain(means).chain(covariances).collect()
}

fn strategies() -> Vec<ValueForm> {
    let form = |usage: &str, about| ValueForm { usage: usage.into(), about };
    let kinds = KINDS.iter().map(|kind| form(&kind.usage(), kind.help()));
    let others = [
        form("normalized-…", "A root above, with columns of norm 1."),
        form(
            "auto",
            "The best of all that can run, within `memory_limit`; with random batches, of `identity` and up to 16 bands.",
        ),
        form("file:PATH", "Saved by `hushflow optimize`, or a CSV matrix."),
    ];
    kinds.chain(others).collect()
}

pub(super) static RELEASE: SectionDefinition = SectionDefinition {
    heading: "[release]",
    about: "How releases are made private: moments with noise that is correlated over epochs, or an estimator of each epoch.",
    fields: &[Field::with_default(
        "method",
        FieldType::Words(methods),
        "\"jme\"",
        "\"jme\"",
        "How moments are made private, or the estimator of each epoch's mean or covariance.",
    )],
    groups: || {
        vec![
            group("methods that release moments", METHODS.iter().map(|word| word.name).collect(), MOMENTS),
            group("robust means (method = \"auto\", \"prime\", …)", means(), MEANS),
            group("covariances (method = \"pace\", \"ssp\", …)", covariances(), COVARIANCES),
            group("robust means and covariances", estimators(), WINDOWS),
        ]
    },
    rules: &[
        Rule {
            when: &[IsNot("strategy", These(&["auto"])), IsNot("second_strategy", These(&["auto"]))],
            then: &[Lacks("memory_limit")],
            message: "a memory limit is only for strategy = \"auto\": leave it out",
        },
        Rule {
            when: &[Is("method", These(&["pp", "joint-clip"]))],
            then: &[Lacks("second_strategy"), Lacks("second_workload")],
            message: "second moments have a strategy of their own with jme, ime and cs alone: leave it out",
        },
        Rule {
            when: &[IsNot("method", These(&["ime"]))],
            then: &[Lacks("first_moment_share")],
            message: "a share of the budget is only for method = \"ime\": leave it out",
        },
        Rule {
            when: &[Is("method", Of(means)), IsNot("method", Of(ranged))],
            then: &[Lacks("range")],
            message: "a range is for tukey and resilience: leave it out",
        },
        Rule {
            when: &[Is("method", These(&["tukey"]))],
            then: &[Has("range")],
            message: "this method needs range = 10, a bound on every mean in scales around 0",
        },
        Rule {
            when: &[Is("method", Of(ranged))],
            then: &[Has("scale"), IsNot("scale", These(&["auto", "whiten"]))],
            message: "this method needs scale = […], a number for each column: it spends no budget on estimating scales",
        },
    ],
    ..SectionDefinition::EMPTY
};

fn group(of: &str, words: Vec<&str>, fields: &'static [Field]) -> FieldGroup {
    let words: Vec<String> = words.into_iter().map(String::from).collect();
    let is_default = words.contains(&Method::default().to_string());
    FieldGroup { of: of.into(), only: GroupTest::Word { key: "method", words, is_default }, fields }
}

/// Methods of robust means.
pub(super) fn means() -> Vec<&'static str> {
    MeanMethod::ALL.iter().map(|method| method.name()).collect()
}

/// Robust means that need scales and may take a range.
fn ranged() -> Vec<&'static str> {
    MeanMethod::ALL.iter().filter(|method| method.takes_range()).map(|method| method.name()).collect()
}

/// Methods of covariances.
pub(super) fn covariances() -> Vec<&'static str> {
    CovarianceMethod::ALL.iter().map(|method| method.name()).collect()
}

/// Methods that estimate each window.
pub(super) fn estimators() -> Vec<&'static str> {
    [means(), covariances()].concat()
}

const MOMENTS: &[Field] = &[
    Field::with_default(
        "workload",
        FieldType::Forms(all_workloads),
        "\"prefix\"",
        "\"window:7\"",
        "The weighted sums over epochs for which the noise is made small; views may show any other.",
    ),
    Field::optional(
        "schedule",
        FieldType::Forms(schedules),
        "all steps weigh the same",
        "\"cosine:10\"",
        "Learning rates that weigh the steps of `prefix` or `momentum`, as training has them.",
    ),
    Field::optional(
        "strategy",
        FieldType::Forms(strategies),
        "one with constant memory, fitted to the workload",
        "\"auto\"",
        "How noise is correlated over epochs; `hushflow plan FILE` compares all.",
    )
    .costs("None: every strategy has the same guarantee and another error."),
    Field::optional(
        "second_strategy",
        FieldType::Forms(strategies),
        "second moments have the strategy of all moments",
        "\"blt:4\"",
        "A `strategy` of second moments alone, with jme, ime and cs.",
    )
    .costs("None, but a weight at which second moments are free has to be found for both strategies."),
    Field::optional(
        "second_workload",
        FieldType::Forms(all_workloads),
        "as `workload`",
        "\"adam:0.999\"",
        "A `workload` of second moments alone, which then have a strategy of their own.",
    ),
    Field::optional(
        "memory_limit",
        FieldType::from(0),
        "no limit",
        "4096",
        "Largest encoder state in bytes per coordinate, for `strategy = \"auto\"`.",
    ),
    Field::optional(
        "first_moment_share",
        FieldType::Number(Range::SHARE),
        "one half",
        "0.7",
        "Share of the budget for counts and means, for `method = \"ime\"`.",
    )
    .costs("It divides the budget."),
];

const MEANS: &[Field] = &[
    Field::required(
        "corruption",
        FieldType::Number(Range { from: Some((0.0, false)), below: Some(0.5) }),
        "0.01",
        "α: share of records that may be arbitrarily corrupt, below 1/6 for resilience.",
    ),
    Field::with_default(
        "scale",
        FieldType::Either(&[FieldType::Words(scales), FieldType::Numbers]),
        "\"auto\"",
        "\"whiten\"",
        "Standard deviations of clean values.",
    )
    .costs("A list must be public knowledge. \"auto\" takes a tenth of the budget, \"whiten\" four tenths."),
    Field::optional(
        "range",
        FieldType::Number(Range::POSITIVE),
        "resilience estimates it; required for tukey",
        "10",
        "R: bound on every mean, in scales around 0, for tukey and resilience.",
    )
    .costs("A third of the budget where resilience must estimate it."),
];

const COVARIANCES: &[Field] = &[Field::optional(
    "centre",
    FieldType::Number(Range::SHARE),
    "the middle of the bounds is the centre",
    "0.1",
    "Share of the budget for a private mean, about which the covariance is taken.",
)
.costs("It takes this share of the budget from the covariance.")];

/// Word of `window` for all epochs so far.
pub(in crate::pipeline) const GROWING: &str = "growing";

fn growing() -> Vec<ValueForm> {
    vec![ValueForm {
        usage: GROWING.into(),
        about: "All epochs so far, each time that their number has doubled.",
    }]
}

/// Largest number of epochs in a window or a stride.
pub(in crate::pipeline) const MAX_EPOCHS: u64 = u32::MAX as u64;

const WINDOWS: &[Field] = &[
    Field::optional(
        "window",
        FieldType::Either(&[FieldType::Words(growing), FieldType::Count { least: 1, most: MAX_EPOCHS }]),
        "as many as `stride`",
        "7",
        "The last epochs that are estimated together. Their rows stay in the private log, with mode 0600.",
    )
    .costs("A record is in every window that contains its epoch, and the budget is divided among these."),
    Field::with_default(
        "stride",
        FieldType::Count { least: 1, most: MAX_EPOCHS },
        "1",
        "7",
        "Epochs from one window to the next, at most `window`; for `window = \"growing\"`, epochs of the first.",
    )
    .costs("A larger one has fewer windows, each with more of the budget. With stride = window none overlap."),
];

fn scales() -> Vec<ValueForm> {
    vec![
        ValueForm { usage: "auto".into(), about: "They are estimated." },
        ValueForm {
            usage: "whiten".into(),
            about: "They and their directions are estimated, for correlated columns.",
        },
    ]
}
