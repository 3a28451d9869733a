//! The table of all sections and fields of a pipeline file, for the parser and the
//! [reference](super::reference). Fields of systems are in `src/connect`, those of views and their
//! estimators in `src/estimates`.

mod epochs;
mod histograms;
mod privacy;
mod release;
mod rules;
mod source;
mod training;

use crate::document::definition::{FieldDefinition as Field, FieldType, Presence, Range, SectionDefinition};
use crate::document::rules::Fact::{Has, Lacks};
use crate::document::rules::Rule;

#[cfg(test)]
pub(super) use epochs::NO_CLOCK;
pub(super) use epochs::{CLOCK, LATE, WEEKDAYS};
pub(super) use histograms::MAX_BINS;
pub(super) use privacy::{NEIGHBOURS, SECOND_MOMENTS, SEVERAL, UNIT};
pub(super) use release::{GROWING, MAX_EPOCHS, METHODS};
#[cfg(test)]
pub(super) use rules::PRIVATE_EVENT_TIME;
pub(super) use rules::{LATE_DUPLICATES, UNMOVED};
pub(super) use source::{MISSING_POLICIES, PREFLIGHTS, ROW_POLICIES};
pub(super) use training::{MODELS, OPTIMISERS, ORDERS, SAMPLINGS};

/// The whole file.
pub(crate) static PIPELINE: SectionDefinition = SectionDefinition {
    heading: "",
    about: "Fields at the top of the file, before the first section.",
    fields: &[
        Field::required(
            "name",
            FieldType::Text,
            "\"flights\"",
            "Name of the releases in tables, on pages and in ledgers.",
        ),
        section("source", FieldType::Section(&source::SOURCE), "required, or [[sources]]"),
        section("sources", FieldType::Sections(&source::SOURCES), "required, or [source]"),
        Field { presence: Presence::Required, ..section("columns", FieldType::Sections(&COLUMN), "") },
        section(
            "histograms",
            FieldType::Sections(&histograms::HISTOGRAM),
            "no counts by ranges or values are released",
        ),
        section("key", FieldType::Section(&KEY), "all records form one series"),
        section("entity", FieldType::Section(&privacy::ENTITY), "single records are protected"),
        section("epochs", FieldType::Section(&epochs::EPOCHS), "required, or `[training]`"),
        section("training", FieldType::Section(&training::TRAINING), "moments of the rows are published"),
        Field {
            presence: Presence::Required,
            ..section("privacy", FieldType::Section(&privacy::PRIVACY), "")
        },
        section("release", FieldType::Section(&release::RELEASE), "all its defaults hold"),
        section(
            "views",
            FieldType::Sections(&crate::estimates::VIEW),
            "one view of the `workload` of `[release]`",
        ),
        section("sinks", FieldType::Sections(&crate::connect::SINK), "releases are in the log only"),
        section("state", FieldType::Section(&STATE), "`run --state DIR` names the directory"),
        section(
            "ledger",
            FieldType::Section(&privacy::LEDGER),
            "the state directory has a ledger of its own",
        ),
        section("simulation", FieldType::Section(&SIMULATION), "noise comes from the operating system"),
    ],
    one_of: || vec!["source".into(), "sources".into()],
    rules: rules::RULES,
    ..SectionDefinition::EMPTY
};

const fn section(key: &'static str, value: FieldType, without: &'static str) -> Field {
    Field::optional(key, value, without, "", "")
}

static COLUMN: SectionDefinition = SectionDefinition {
    heading: "[[columns]]",
    about: "A coordinate of every record: a numeric column whose means and covariances are published.",
    fields: &[
        Field::required("name", FieldType::Text, "\"age\"", "Name of the column in the source."),
        Field::optional(
            "lower",
            FieldType::Number(Range::FINITE),
            "required, or `bounds` of every key",
            "0",
            "Public lower bound in the unit of the column; smaller values count as this one.",
        )
        .costs("The bounds are published. Choose them without looking at the data. Noise is proportional to their distance."),
        Field::optional(
            "upper",
            FieldType::Number(Range::FINITE),
            "required, or `bounds` of every key",
            "100",
            "Public upper bound, above `lower`; larger values count as this one.",
        )
        .costs("As `lower`."),
        Field::optional(
            "bounds",
            FieldType::BoundsByKey,
            "`lower` and `upper` hold for every key",
            "{ EWR = [0, 60] }",
            "Lower and upper bound for single keys, where kinds of measurement are keys.",
        )
        .costs("As `lower`."),
    ],
    rules: &[
        Rule { when: &[Lacks("bounds")], then: &[Has("lower"), Has("upper")], message: "" },
        Rule { when: &[Has("bounds"), Has("lower")], then: &[Has("upper")], message: "" },
        Rule { when: &[Has("bounds"), Has("upper")], then: &[Has("lower")], message: "" },
    ],
    ..SectionDefinition::EMPTY
};

static KEY: SectionDefinition = SectionDefinition {
    heading: "[key]",
    about: "One series of releases for each value of a column.",
    fields: &[
        Field::required("column", FieldType::Text, "\"city\"", "Column that holds the key of a record."),
        Field::optional(
            "values",
            FieldType::Texts,
            "required, or `values_file` or `discover`",
            "[\"EWR\", \"JFK\"]",
            "All keys, in the order of the tables; rows with another key are skipped.",
        )
        .costs("The list is published, also keys without records. Take it from public knowledge, not from the data."),
        Field::optional(
            "values_file",
            FieldType::Text,
            "required, or `values` or `discover`",
            "\"keys.txt\"",
            "File with one key per line, relative to the pipeline file; empty lines are skipped.",
        )
        .costs("As `values`."),
        section("discover", FieldType::Section(&DISCOVER), "`values` or `values_file` list the keys"),
    ],
    one_of: || vec!["values".into(), "values_file".into(), "discover".into()],
    ..SectionDefinition::EMPTY
};

static DISCOVER: SectionDefinition = SectionDefinition {
    heading: "[key.discover]",
    about: "Keys that nobody lists: each is shown once a noisy count of its records, or of its entities if they are protected, is \
            large enough.",
    fields: &[
        Field::required(
            "delta",
            FieldType::Number(Range::SHARE),
            "1e-8",
            "Probability that any key of a single record, or of a single entity if they are protected, is ever shown.",
        )
        .costs("(1 + e^ε) times it is part of the `delta` of `[privacy]`."),
        Field::with_default(
            "share",
            FieldType::Number(Range::SHARE),
            "0.1",
            "0.2",
            "Share of the budget that finds keys; the rest is for their moments.",
        ),
        Field::with_default(
            "most",
            FieldType::Count { least: 1, most: u32::MAX as u64 },
            "1000",
            "10000",
            "Number of keys that can be shown; each has a slot in every release, whether it has a key or not.",
        )
        .costs("The number is published. Choose it without looking at the data."),
        Field::with_default(
            "at_least",
            FieldType::Count { least: 1, most: 1 << 40 },
            "1",
            "20",
            "A key with fewer records, or different entities if they are protected, is never shown. The threshold grows by it, and \
             memory and time shrink.",
        ),
        Field::optional(
            "threshold",
            FieldType::Count { least: 1, most: 1 << 40 },
            "the least after each epoch that `delta` allows",
            "500",
            "A key is shown once its noisy count exceeds this; refused if that is more likely than `delta` for keys of one unit.",
        ),
    ],
    ..SectionDefinition::EMPTY
};

static STATE: SectionDefinition = SectionDefinition {
    heading: "[state]",
    about: "The directory that makes a run survive crashes.",
    fields: &[
        Field::optional(
            "directory",
            FieldType::Text,
            "`run --state DIR` names it",
            "\"state\"",
            "State directory, relative to the pipeline file; it holds private sums, in mode 0700.",
        ),
        Field::with_default(
            "keep",
            FieldType::Pattern(
                "\"all\", a number of epochs such as \"100 epochs\", or an age such as \"30 days\"",
                "^(all|.*[0-9].*|(sec|second|min|minute|hr|hour|day|wk|week)s?)$",
            ),
            "\"0 epochs\"",
            "\"30 days\"",
            "How long the exact sums of committed epochs stay in the private log.",
        ),
        Field::optional(
            "anchor",
            FieldType::Text,
            "no check against restored backups",
            "\"../anchors\"",
            "Directory elsewhere that records the progress of the log, so that a restored old state directory is refused.",
        ),
        Field::optional(
            "public",
            FieldType::Text,
            "the state directory holds the public log",
            "\"public\"",
            "Directory for the public log alone, which everyone may read.",
        ),
    ],
    ..SectionDefinition::EMPTY
};

static SIMULATION: SectionDefinition = SectionDefinition {
    heading: "[simulation]",
    about: "Noise from a seed, to repeat an experiment: the releases are **not private**.",
    fields: &[
        Field::required("seed", FieldType::from(0), "42", "Seed of the noise.")
            .costs("Everything: anyone who knows the seed can remove the noise."),
        Field::optional(
            "offsets",
            FieldType::Text,
            "the noise alone",
            "\"offsets.csv\"",
            "CSV file of integers that are added to the noise, one line for each epoch, to test the mechanism.",
        ),
    ],
    ..SectionDefinition::EMPTY
};
