//! Fields of `[training]`.

use crate::document::definition::{
    FieldDefinition as Field, FieldType, Range, SectionDefinition, Word, forms, word,
};
use crate::document::rules::Fact::{Has, Is, IsNot, Lacks};
use crate::document::rules::Rule;
use crate::document::rules::WordSet::These;
use crate::pipeline::training::{ModelKind, OptimiserKind, RowOrder};
use hushflow_mechanism::sampling::Sampling;

/// Words of `model`.
pub(in crate::pipeline) const MODELS: &[Word<ModelKind>] = &[
    word("linear", ModelKind::Linear, "Linear regression: `target` is one of `[[columns]]`."),
    word("logistic", ModelKind::Logistic, "Logistic regression: `target` is one of two `classes`."),
    word("softmax", ModelKind::Softmax, "Softmax regression: `target` is one of `classes`."),
    word(
        "gradients",
        ModelKind::Gradients,
        "Each row is the gradient of one record, computed elsewhere; `[[columns]]` are its coordinates.",
    ),
];

/// Words of `optimiser`.
pub(in crate::pipeline) const OPTIMISERS: &[Word<OptimiserKind>] = &[
    word("sgd", OptimiserKind::Sgd, "Gradient descent."),
    word("momentum", OptimiserKind::Momentum, "Gradient descent with heavy-ball momentum."),
    word("dp-adam", OptimiserKind::DpAdam, "Adam with squares of noisy mean gradients."),
    word("dp-adam-bc", OptimiserKind::DpAdamBc, "The same, minus the variance of the noise."),
    word(
        "scale-then-privatise",
        OptimiserKind::ScaleThenPrivatise,
        "Adam that scales gradients before they are clipped.",
    ),
    word("jme", OptimiserKind::Jme, "Adam with released squares of the gradients of single rows."),
    word("joint-clip", OptimiserKind::JointClip, "The same, with gradients and squares clipped together."),
];

/// Words of `order`.
pub(in crate::pipeline) const ORDERS: &[Word<RowOrder>] = &[
    word("shuffled", RowOrder::Shuffled, "A fixed public permutation of the rows."),
    word("source", RowOrder::Source, "As in the source: for rows without an order that matters."),
];

/// Words of `sampling`.
pub(in crate::pipeline) const SAMPLINGS: &[Word<Sampling>] = &[
    word(
        "in-order",
        Sampling::InOrder,
        "Batches of public rows, in the `order`: the guarantee assumes nothing random.",
    ),
    word(
        "poisson",
        Sampling::Poisson,
        "Secret batches: each row with probability m/N, independently in every step.",
    ),
    word(
        "balls-in-bins",
        Sampling::BallsInBins,
        "Secret batches: in every pass, each row in one random step. `batch_size` must divide `records`.",
    ),
];

pub(super) static TRAINING: SectionDefinition = SectionDefinition {
    heading: "[training]",
    about: "A model that `hushflow train` trains on the rows: its steps take the place of epochs, and the gradients of rows \
            that of records.",
    fields: &[
        Field::required("model", FieldType::Words(|| forms(MODELS)), "\"linear\"", "What is trained."),
        Field::optional(
            "target",
            FieldType::Text,
            "required, but for gradients",
            "\"arr_delay\"",
            "Column that the model predicts.",
        ),
        Field::optional(
            "classes",
            FieldType::Texts,
            "required for logistic and softmax",
            "[\"no\", \"yes\"]",
            "All values of the target. Logistic regression predicts the second.",
        )
        .costs(
            "The list is published. Take it from public knowledge. A row with another value counts as blank.",
        ),
        Field::required(
            "records",
            FieldType::Count { least: 1, most: u32::MAX as u64 },
            "26398",
            "Number of rows of the source. A run with another number is refused.",
        )
        .costs("The number is public: neighbours have the same."),
        Field::required(
            "batch_size",
            FieldType::Count { least: 1, most: u32::MAX as u64 },
            "1000",
            "m: rows in a step, on average if they are drawn at random. In order, rows that don't fill a last batch are left out.",
        )
        .costs("None. The noise of a mean gradient falls with m."),
        Field::required(
            "passes",
            FieldType::Count { least: 1, most: u32::MAX as u64 },
            "5",
            "k: passes over the rows. Every row takes part once in each, with `poisson` on average.",
        )
        .costs("Noise grows with it, by a factor between its square root and itself."),
        Field::with_default(
            "order",
            FieldType::Words(|| forms(ORDERS)),
            "\"shuffled\"",
            "\"source\"",
            "Which rows form a batch. It depends on positions alone.",
        ),
        Field::with_default(
            "sampling",
            FieldType::Words(|| forms(SAMPLINGS)),
            "\"in-order\"",
            "\"poisson\"",
            "How rows are assigned to steps.",
        )
        .costs(
            "None: secret batches need less noise. The guarantee then requires that nobody can time the steps.",
        ),
        Field::with_default(
            "optimiser",
            FieldType::Words(|| forms(OPTIMISERS)),
            "\"dp-adam\"",
            "\"momentum\"",
            "How parameters follow from noisy gradients.",
        ),
        Field::required(
            "learning_rate",
            FieldType::Number(Range::POSITIVE),
            "0.05",
            "α. The `schedule` of `[release]` multiplies it step by step.",
        )
        .costs("Tune it on public data: a choice by the results of other runs is not covered."),
        Field::with_default(
            "momentum",
            FieldType::Number(Range::SHARE),
            "0.9",
            "0.95",
            "β, for `optimiser = \"momentum\"`.",
        ),
    ],
    rules: &[
        Rule { when: &[IsNot("model", These(&["gradients"]))], then: &[Has("target")], message: "" },
        Rule { when: &[Is("model", These(&["logistic", "softmax"]))], then: &[Has("classes")], message: "" },
        Rule {
            when: &[Is("model", These(&["gradients"]))],
            then: &[Lacks("target")],
            message: "rows that are gradients have no target: leave it out",
        },
        Rule {
            when: &[IsNot("model", These(&["logistic", "softmax"]))],
            then: &[Lacks("classes")],
            message: "classes are for logistic and softmax: leave them out",
        },
        Rule {
            when: &[IsNot("optimiser", These(&["momentum"]))],
            then: &[Lacks("momentum")],
            message: "this is for optimiser = \"momentum\": leave it out",
        },
    ],
    ..SectionDefinition::EMPTY
};
