//! Fields of `[privacy]`, `[entity]` and `[ledger]`.

use hushflow_mechanism::moments::SecondMoment;
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_operators::RepeatPolicy;

use crate::document::definition::{
    FieldDefinition as Field, FieldType, Range, SectionDefinition, Word, forms, word,
};
use crate::document::rules::Fact::{Has, Is, Lacks};
use crate::document::rules::Rule;
use crate::document::rules::WordSet::These;

/// Words of `neighbours`.
pub(in crate::pipeline) const NEIGHBOURS: &[Word<Neighbours>] = &[
    word(
        "replace-one",
        Neighbours::ReplaceOne,
        "One record is replaced by any other, even of another key or epoch. Counts are private.",
    ),
    word(
        "replace-one-in-place",
        Neighbours::ReplaceOneInPlace,
        "The values of one record are replaced. Its key and event time, and so all counts, are public.",
    ),
    word("zero-out", Neighbours::ZeroOut, "One record is blanked. Counts are private."),
];

/// Words of `unit`, and whether entities are meant.
pub(in crate::pipeline) const UNIT: &[Word<bool>] = &[
    word("record", false, "A single row."),
    word("entity", true, "All rows of an entity, such as a person: see `[entity]`."),
];

/// Words of `second_moments`.
pub(in crate::pipeline) const SECOND_MOMENTS: &[Word<SecondMoment>] = &[
    word("full", SecondMoment::Full, "Products of all pairs of columns: variances and covariances."),
    word("diagonal", SecondMoment::Diagonal, "Squares only: variances."),
    word("none", SecondMoment::None, "Means only."),
];

/// Words of `several`.
pub(in crate::pipeline) const SEVERAL: &[Word<RepeatPolicy>] = &[
    word("keep", RepeatPolicy::Keep, "The first of them in the source count."),
    word("average", RepeatPolicy::Average, "Those of one key become one record, their mean."),
];

const EPSILON: Field = Field::required(
    "epsilon",
    FieldType::Number(Range::POSITIVE),
    "1.0",
    "ε of the (ε, δ)-differential privacy of all releases together; smaller is more private.",
)
.costs("ε is the cost: halving it about doubles the noise.");

const DELTA: Field = Field::required(
    "delta",
    FieldType::Number(Range::SHARE),
    "1e-6",
    "δ of (ε, δ)-differential privacy, far below one over the number of records or entities.",
)
.costs("The guarantee of ε may fail with about this probability.");

pub(super) static PRIVACY: SectionDefinition = SectionDefinition {
    heading: "[privacy]",
    about: "The guarantee. It covers the whole history of releases.",
    fields: &[
        EPSILON,
        DELTA,
        Field::with_default(
            "neighbours",
            FieldType::Words(|| forms(NEIGHBOURS)),
            "\"replace-one\"",
            "\"zero-out\"",
            "Which two streams must be hard to tell apart.",
        )
        .costs("It says what is protected: in place, keys, times and counts are not."),
        Field::with_default(
            "unit",
            FieldType::Words(|| forms(UNIT)),
            "\"record\"",
            "\"entity\"",
            "Whether single records or whole entities are protected.",
        )
        .costs("With \"record\", a person with many records is protected less than each record."),
        Field::optional(
            "clip_norm",
            FieldType::Number(Range::POSITIVE),
            "√d for d columns, which clips nothing inside the bounds",
            "1.5",
            "ζ: largest norm of a record after the bounds are scaled to [−1, 1]; longer records are shortened.",
        )
        .costs("Noise is proportional to it. A smaller one biases the means of longer records."),
        Field::with_default(
            "second_moments",
            FieldType::Words(|| forms(SECOND_MOMENTS)),
            "\"full\"",
            "\"diagonal\"",
            "Which products of columns are released beside the sums.",
        )
        .costs("None with `method = \"jme\"` and the default `second_moment_weight`."),
        Field::optional(
            "second_moment_weight",
            FieldType::Number(Range::POSITIVE),
            "the largest weight that adds no noise to the means",
            "0.25",
            "λ: weight of the second moments in the joint release, for `method` jme, cs and joint-clip; \
             their noise has the variance of that of the means divided by λ.",
        )
        .costs("A weight above the default takes budget from the means; a smaller one only adds noise to the second moments."),
        Field::optional(
            "histogram_weight",
            FieldType::Number(Range::POSITIVE),
            "0.5",
            "0.2",
            "w: weight of all `[[histograms]]` together in the joint release. With H of them, `method = \"jme\"` and the \
             default `second_moment_weight`, the noise of a bin has the variance of that of the count times H/(2w).",
        )
        .costs(
            "With these defaults the noise of the moments grows by √(1 + w/2), 12 % for ½ and 5 % for 0.2; that of the bins \
             falls with the root of w. `hushflow plan` prints both for any settings.",
        ),
    ],
    ..SectionDefinition::EMPTY
};

pub(super) static ENTITY: SectionDefinition = SectionDefinition {
    heading: "[entity]",
    about: "Entities that are protected as a whole, with `unit = \"entity\"` in `[privacy]`.",
    fields: &[
        Field::required(
            "column",
            FieldType::Text,
            "\"user\"",
            "Column that identifies the entity of a record.",
        ),
        Field::optional(
            "kind",
            FieldType::Text,
            "the name of the column",
            "\"user\"",
            "Kind of these entities in ledgers, so that pipelines with other column names share a budget.",
        ),
        Field::optional(
            "within",
            FieldType::Texts,
            "none",
            "[\"airline\"]",
            "Larger kinds of entity, each of which contains all records of one of these.",
        )
        .costs("It is trusted: if an entity changes its larger one, leave it out."),
        Field::required(
            "participations",
            FieldType::from(1),
            "10",
            "Maximum number of epochs in which an entity counts; its later records are left out.",
        )
        .costs("Noise grows with it, by a factor between its square root and itself."),
        Field::with_default(
            "min_separation",
            FieldType::from(1),
            "1",
            "7",
            "Minimum distance, in epochs, between two epochs in which an entity counts.",
        )
        .costs("A larger one lowers the noise of several participations."),
        Field::with_default(
            "records_per_epoch",
            FieldType::Count { least: 1, most: u32::MAX as u64 },
            "1",
            "3",
            "Maximum number of records of an entity that count in an epoch.",
        )
        .costs("Noise is proportional to it."),
        Field::with_default(
            "several",
            FieldType::Words(|| forms(SEVERAL)),
            "\"keep\"",
            "\"average\"",
            "What happens to further records of an entity in an epoch.",
        ),
        Field::optional(
            "sent_limit",
            FieldType::Count { least: 1, most: u32::MAX as u64 },
            "none: the number is not released",
            "20",
            "Releases how many records were sent by the entities that count in an epoch, those beyond \
             `records_per_epoch` included, up to this number of each entity, at least `records_per_epoch`.",
        )
        .costs("All other noise grows by 1 % at most. The noise of this number is proportional to it."),
    ],
    ..SectionDefinition::EMPTY
};

pub(super) static LEDGER: SectionDefinition = SectionDefinition {
    heading: "[ledger]",
    about: "The ledger that adds up what all pipelines and commands spend on the same data.",
    fields: &[
        Field::optional(
            "directory",
            FieldType::Text,
            "HUSHFLOW_LEDGER or config.toml names it, else the state directory has its own",
            "\"ledger\"",
            "Directory of the ledger that all pipelines over the same data share.",
        )
        .costs("Without a shared ledger, nothing adds up what several pipelines reveal."),
        Field::optional(
            "data_set",
            FieldType::Text,
            "required with `directory`",
            "\"flights\"",
            "Name of the data in a shared ledger.",
        ),
        Field::optional("budget", FieldType::Section(&BUDGET), "no limit", "", ""),
    ],
    rules: &[
        Rule {
            when: &[Lacks("directory"), Lacks("data_set")],
            then: &[Has("budget")],
            message: "the section is empty: add directory = \"ledger\" and data_set = \"flights\", or budget = { epsilon = 2, delta = 1e-6 }",
        },
        Rule {
            when: &[Has("directory")],
            then: &[Has("data_set")],
            message: "directory names a shared ledger, but the name of the data is missing: add data_set = \"flights\"",
        },
    ],
    ..SectionDefinition::EMPTY
};

static BUDGET: SectionDefinition = SectionDefinition {
    heading: "[ledger.budget]",
    about: "The most that all pipelines may spend together on the data; no run exceeds it.",
    fields: &[
        EPSILON,
        DELTA,
        Field::optional(
            "neighbours",
            FieldType::Words(|| forms(NEIGHBOURS)),
            "that of `[privacy]`",
            "\"replace-one\"",
            "Neighbours of the budget.",
        ),
        Field::optional(
            "unit",
            FieldType::Words(|| forms(UNIT)),
            "that of `[privacy]`",
            "\"entity\"",
            "Whether the budget protects records or entities.",
        ),
        Field::optional(
            "entity",
            FieldType::Text,
            "the kind of `[entity]`",
            "\"user\"",
            "Kind of entity that the budget protects.",
        ),
    ],
    rules: &[Rule {
        when: &[Is("unit", These(&["record"]))],
        then: &[Lacks("entity")],
        message: "found unit = \"record\" and entity: a budget has one unit, remove one of them",
    }],
    ..SectionDefinition::EMPTY
};
