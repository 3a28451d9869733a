//! Fields of `[source]` and `[[sources]]`. Fields of single systems are in the systems' folders.

use super::epochs::{ARRIVAL, CLOCK_FIELD, LATENESS, NEVER_LATE, TWO_CLOCKS};
use crate::connect::{
    DELIMITER, FORMAT, HEADER, SIZE, SOURCE_PATH, TIME_FORMAT, always_journaled, journaled, never_corrected,
    source_groups,
};
use crate::document::definition::{
    FieldDefinition as Field, FieldGroup, FieldType, GroupTest, SectionDefinition, Word, forms, word,
};
use crate::document::rules::Fact::{Has, Is, IsFlag, IsNot, IsNotFlag, Lacks, LeadsElsewhere, LeadsTo};
use crate::document::rules::Rule;
use crate::document::rules::WordSet::{Of, These};
use crate::pipeline::{MissingPolicy, Preflight, RowPolicy};

/// Words of `missing`.
pub(in crate::pipeline) const MISSING_POLICIES: &[Word<MissingPolicy>] = &[
    word("skip", MissingPolicy::Skip, "Skip the row, whatever it holds."),
    word(
        "reject",
        MissingPolicy::Reject,
        "Stop the run with an error, for files that are known to be clean.",
    ),
    word(
        "by-column",
        MissingPolicy::ByColumn,
        "Count the row in the columns that it has: each mean is over its own rows, each covariance over those with both.",
    ),
];

/// Words of `malformed`.
pub(in crate::pipeline) const ROW_POLICIES: &[Word<RowPolicy>] = &[
    word("skip", RowPolicy::Skip, "Skip the row, whatever it holds."),
    word("reject", RowPolicy::Reject, "Stop the run with an error, for files that are known to be clean."),
];

/// Words of `preflight`.
pub(in crate::pipeline) const PREFLIGHTS: &[Word<Preflight>] = &[
    word(
        "warn",
        Preflight::Warn,
        "Stop a first run before it spends anything for public facts alone, such as a clock far ahead of the start. Warn of \
         private ones among its first rows, such as unlisted keys.",
    ),
    word(
        "stop",
        Preflight::Stop,
        "Stop for private facts too: a first run before it spends anything, and later before more epochs are published.",
    ),
    word("off", Preflight::Off, "Don't judge the rows."),
];

const FIELDS: &[Field] = &[
    SOURCE_PATH,
    FORMAT,
    DELIMITER,
    HEADER,
    TIME_FORMAT,
    Field::with_default(
        "missing",
        FieldType::Words(|| forms(MISSING_POLICIES)),
        "\"skip\"",
        "\"reject\"",
        "What happens to rows that lack a value.",
    )
    .costs("A run that stops reveals that such a row exists: choose \"reject\" only for clean files."),
    Field::with_default(
        "malformed",
        FieldType::Words(|| forms(ROW_POLICIES)),
        "\"skip\"",
        "\"reject\"",
        "What happens to rows that can't be parsed.",
    )
    .costs("As `missing`."),
    Field::with_default(
        "preflight",
        FieldType::Words(|| forms(PREFLIGHTS)),
        "\"warn\"",
        "\"stop\"",
        "What a run does before it publishes epochs if most of the rows would not count, or nearly all epochs would be empty.",
    )
    .costs(
        "With \"stop\", readers who see that a run does not begin to publish, or ends early, learn that rows did not pass, and at \
         which epoch. One record can decide it, and (ε, δ) does not cover it.",
    ),
    Field::optional(
        "id",
        FieldType::Text,
        "every row counts",
        "\"uuid\"",
        "Column that identifies duplicates of a record: of several in an epoch, one counts.",
    ),
    Field::with_default(
        "journal",
        FieldType::Flag,
        "false",
        "true",
        "Whether rows of standard input are written to disk before they count; sockets always have a journal.",
    ),
    Field::with_default(
        "journal_limit",
        FieldType::Pattern("a size from \"8 MiB\", such as \"512 MiB\" or \"2 GB\"", SIZE),
        "\"1 GiB\"",
        "\"512 MiB\"",
        "Size of the journal at which senders wait.",
    ),
    Field::optional(
        "largest_jump",
        FieldType::Duration { least: 1 },
        "four days or a tenth of the horizon, whichever is more, within ten epochs and half the horizon",
        "\"2d\"",
        "A row whose time is further ahead of the clock than this does not count and does not advance it.",
    ),
];

pub(super) static SOURCE: SectionDefinition = SectionDefinition {
    heading: "[source]",
    about: "Where records come from.",
    fields: FIELDS,
    groups: source_groups,
    rules: &[JOURNALED, ALWAYS_JOURNALED, LIMITED, CORRECTED, CORRECTED_IN_JOURNAL],
    ..SectionDefinition::EMPTY
};

const JOURNALED: Rule = Rule {
    when: &[LeadsElsewhere("path", Of(journaled))],
    then: &[IsNotFlag("journal", true)],
    message: "a journal is for standard input (path = \"-\") and sockets, because files and brokers can be read again: leave it out",
};

const ALWAYS_JOURNALED: Rule = Rule {
    when: &[LeadsTo("path", Of(always_journaled))],
    then: &[IsNotFlag("journal", false)],
    message: "records from a socket can't be read again, so they are always journaled: leave it out",
};

const LIMITED: Rule = Rule {
    when: &[LeadsElsewhere("path", Of(always_journaled)), IsNotFlag("journal", true)],
    then: &[Lacks("journal_limit")],
    message: "this limit is for a journal, and this source has none: leave it out, or add journal = true",
};

const CORRECTED: Rule = Rule {
    when: &[LeadsTo("path", Of(never_corrected))],
    then: &[IsNot("missing", These(&["reject"])), IsNot("malformed", These(&["reject"]))],
    message: NEVER_MENDED,
};

const CORRECTED_IN_JOURNAL: Rule = Rule { when: &[IsFlag("journal", true)], ..CORRECTED };

const NEVER_MENDED: &str =
    "a row in a journal or on a broker can't be corrected, so rows must not be rejected: choose \"skip\"";

pub(super) static SOURCES: SectionDefinition = SectionDefinition {
    heading: "[[sources]]",
    about: "One of several sources that are read together, each with its own clock. It has all fields of `[source]`, and these.",
    fields: &[
        Field::required("name", FieldType::Text, "\"north\"", "Name of the source, in messages."),
        Field { presence: THAT_OF_EPOCHS, ..ARRIVAL },
        Field { presence: THAT_OF_EPOCHS, ..CLOCK_FIELD },
        Field { presence: THAT_OF_EPOCHS, ..LATENESS },
        Field::optional(
            "idle",
            FieldType::Duration { least: 1 },
            "the other sources wait for it",
            "\"30s\"",
            "After this time without a row, the other sources no longer wait for this one.",
        ),
    ],
    groups: || {
        let mut groups = source_groups();
        groups.insert(0, FieldGroup { of: SOURCE.heading.into(), only: GroupTest::Any, fields: FIELDS });
        groups
    },
    rules: &[
        Rule { when: &[Has("clock")], then: &[Lacks("arrival")], message: TWO_CLOCKS },
        Rule {
            when: &[Is("clock", These(&["end-of-input"]))],
            then: &[Lacks("allowed_lateness")],
            message: NEVER_LATE,
        },
        JOURNALED,
        ALWAYS_JOURNALED,
        LIMITED,
        CORRECTED,
        CORRECTED_IN_JOURNAL,
    ],
    ..SectionDefinition::EMPTY
};

const THAT_OF_EPOCHS: crate::document::definition::Presence =
    crate::document::definition::Presence::Optional("that of `[epochs]`");
