//! Fields of `[epochs]`.

use hushflow_mechanism::epochs::{ClockSource, LatePolicy};
use jiff::civil::Weekday;

use crate::document::definition::{
    FieldDefinition as Field, FieldType, SectionDefinition, Word, forms, word,
};
use crate::document::rules::Fact::{Has, Is, Lacks};
use crate::document::rules::Rule;
use crate::document::rules::WordSet::These;

/// Words of `clock`.
pub(in crate::pipeline) const CLOCK: &[Word<ClockSource>] = &[
    word(
        "event-time",
        ClockSource::EventTime,
        "The largest event time so far; needs neighbours = \"replace-one-in-place\".",
    ),
    word("end-of-input", ClockSource::EndOfInput, "Nothing: all epochs close when the input ends."),
];

/// Words of `late`.
pub(in crate::pipeline) const LATE: &[Word<LatePolicy>] = &[
    word("fold", LatePolicy::Fold, "It joins the oldest open epoch."),
    word("drop", LatePolicy::Drop, "It is dropped."),
];

/// Words of `week_starts`.
pub(in crate::pipeline) const WEEKDAYS: &[Word<Weekday>] = &[
    word("monday", Weekday::Monday, "As in ISO 8601."),
    word("tuesday", Weekday::Tuesday, ""),
    word("wednesday", Weekday::Wednesday, ""),
    word("thursday", Weekday::Thursday, ""),
    word("friday", Weekday::Friday, ""),
    word("saturday", Weekday::Saturday, ""),
    word("sunday", Weekday::Sunday, ""),
];

/// `arrival`: of `[epochs]` and of each of several sources.
pub(super) const ARRIVAL: Field = Field::optional(
    "arrival",
    FieldType::Text,
    "`clock` is required",
    "\"recorded_at\"",
    "Column with the time when a row arrived; the largest so far is the clock that closes epochs.",
)
.costs("Arrival times are public: when an epoch closes, everyone sees it.");

/// `clock`: of `[epochs]` and of each of several sources.
pub(super) const CLOCK_FIELD: Field = Field::optional(
    "clock",
    FieldType::Words(|| forms(CLOCK)),
    "`arrival` is required",
    "\"end-of-input\"",
    "What closes epochs, if no column of arrival times does.",
)
.costs("A clock must be public. Event times are private, unless neighbours keep them.");

/// `allowed_lateness`: of `[epochs]` and of each of several sources.
pub(super) const LATENESS: Field = Field::with_default(
    "allowed_lateness",
    FieldType::Duration { least: 0 },
    "\"0s\"",
    "\"6h\"",
    "How long an epoch stays open after its end, by the clock.",
);

/// Explains why a clock is needed.
pub(in crate::pipeline) const NO_CLOCK: &str = "it is not defined when an epoch closes: add arrival = \"recorded_at\" (the column with \
    the time when a row arrived), or clock = \"end-of-input\" (all epochs close when the input ends)";

pub(super) const TWO_CLOCKS: &str =
    "found arrival and clock: only one can advance the clock, remove the other";

/// Explains why fields about late records don't fit a clock.
pub(super) const NEVER_LATE: &str = "with clock = \"end-of-input\", no record is late: remove this field";

pub(super) static EPOCHS: SectionDefinition = SectionDefinition {
    heading: "[epochs]",
    about: "The steps of the release: by time (`time`, `start`, `length` and a clock) or by number of rows (`records`).",
    fields: &[
        Field::required("horizon", FieldType::from(1), "365", "Number of epochs, after which a run ends.")
            .costs("The budget covers all of them together: noise grows slowly with the horizon."),
        Field::optional(
            "records",
            FieldType::from(1),
            "`time`, `start`, `length` and a clock are required",
            "1000",
            "Rows in an epoch, for epochs by position in a single source.",
        )
        .costs("The number of rows, and so of releases, is public."),
        Field::optional(
            "time",
            FieldType::Text,
            "required, or `records = 1000`",
            "\"event_time\"",
            "Column of the event time of a record, which decides its epoch; records = 1000 instead counts rows.",
        ),
        ARRIVAL,
        CLOCK_FIELD,
        Field::optional(
            "start",
            FieldType::Time,
            "required with `time`",
            "\"2013-01-01\"",
            "The beginning of epoch 1; without an offset, in the time zone, or in UTC.",
        ),
        Field::optional(
            "length",
            FieldType::Duration { least: 1 },
            "required with `time`",
            "\"1d\"",
            "Length of an epoch: a duration, or with `timezone` a number of days, weeks, months or years of the calendar, such as \
             \"2 weeks\"; \"month\" is one month.",
        ),
        Field::optional(
            "timezone",
            FieldType::Pattern("a name of the time zone database such as \"America/New_York\"", "^[A-Za-z]"),
            "UTC; a day has 24 hours",
            "\"America/New_York\"",
            "Time zone of the calendar, of dates in tables, and of times in the data without an offset: the first of two \
             equal ones as clocks go back; as clocks go forward, a skipped one is that much later. The log keeps the \
             boundaries, and a later run with others is refused.",
        ),
        Field::optional(
            "week_starts",
            FieldType::Words(|| forms(WEEKDAYS)),
            "weeks begin on the day of `start`",
            "\"monday\"",
            "First day of a week, for weeks in a time zone: `start` must be such a day.",
        ),
        LATENESS,
        Field::with_default(
            "late",
            FieldType::Words(|| forms(LATE)),
            "\"fold\"",
            "\"drop\"",
            "What happens to a record whose epoch has closed.",
        ),
    ],
    one_of: || vec!["records".into(), "time".into()],
    rules: &[
        Rule {
            when: &[Has("records")],
            then: &[
                Lacks("time"),
                Lacks("arrival"),
                Lacks("clock"),
                Lacks("start"),
                Lacks("length"),
                Lacks("allowed_lateness"),
                Lacks("late"),
                Lacks("timezone"),
                Lacks("week_starts"),
            ],
            message: "found beside records: epochs are defined by records or by time, remove one",
        },
        Rule { when: &[Lacks("records")], then: &[Has("start"), Has("length")], message: "" },
        Rule { when: &[Lacks("records"), Lacks("arrival")], then: &[Has("clock")], message: NO_CLOCK },
        Rule { when: &[Has("clock")], then: &[Lacks("arrival")], message: TWO_CLOCKS },
        Rule {
            when: &[Is("clock", These(&["end-of-input"]))],
            then: &[Lacks("allowed_lateness"), Lacks("late")],
            message: NEVER_LATE,
        },
        Rule {
            when: &[Lacks("records"), Lacks("timezone")],
            then: &[Lacks("week_starts")],
            message: "this day is for weeks in a time zone: add timezone, or leave it out",
        },
    ],
    ..SectionDefinition::EMPTY
};
