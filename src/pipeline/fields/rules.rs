//! Rules on fields of different sections.

use hushflow_mechanism::mechanism::Method;

use super::METHODS;
use super::release::{covariances, estimators, means};
use crate::document::rules::Fact::{Has, Is, IsNot, IsNotSingle, IsSingle, Lacks};
use crate::document::rules::Rule;
use crate::document::rules::WordSet::{Of, These};

pub(super) const RULES: &[Rule] = &[
    Rule { when: &[Lacks("training")], then: &[Has("epochs")], message: "" },
    Rule {
        when: &[Has("training")],
        then: &[
            Lacks("epochs"),
            Lacks("key"),
            Lacks("entity"),
            Lacks("histograms"),
            Lacks("views"),
            Lacks("sinks"),
            Lacks("sources"),
            Lacks("source.id"),
            Lacks("source.header"),
            Lacks("source.preflight"),
            Lacks("release.method"),
            Lacks("privacy.second_moments"),
        ],
        message: "a file with [training] trains a model, which does not use this: leave it out",
    },
    Rule {
        when: &[Has("training"), IsNot("training.optimiser", These(&["jme"]))],
        then: &[Lacks("release.second_strategy"), Lacks("release.second_workload")],
        message: "only optimiser = \"jme\" releases second moments that can have a strategy of their own: leave it out",
    },
    Rule {
        when: &[Is("privacy.second_moments", These(&["none"])), IsNot("release.method", Of(estimators))],
        then: &[Lacks("release.second_strategy"), Lacks("release.second_workload")],
        message: "no second moments are released: leave it out",
    },
    Rule {
        when: &[Has("training")],
        then: &[Is("privacy.neighbours", These(&["replace-one-in-place", "zero-out"]))],
        message: "training keeps every row at its position, since a row that is added or removed would move all later ones to other \
                  batches: choose neighbours = \"replace-one-in-place\", or \"zero-out\"",
    },
    Rule {
        when: &[Has("training")],
        then: &[Has("privacy.clip_norm")],
        message: "training needs clip_norm = 1, the largest norm of the gradient of a row",
    },
    Rule {
        when: &[Has("training")],
        then: &[IsNot("source.missing", These(&["by-column"]))],
        message: "a gradient needs a complete row: choose \"skip\", with which an incomplete row counts as blank",
    },
    Rule {
        when: &[Is("privacy.unit", These(&["entity"]))],
        then: &[Has("entity")],
        message: "unit = \"entity\" needs a section [entity] with column = \"user\" and participations = 10",
    },
    Rule {
        when: &[IsNot("privacy.unit", These(&["entity"]))],
        then: &[Lacks("entity")],
        message: "a section [entity] needs unit = \"entity\" in [privacy]: add it there",
    },
    Rule {
        when: &[IsNot("privacy.neighbours", These(&["replace-one-in-place"]))],
        then: &[
            IsNot("epochs.clock", These(&["event-time"])),
            IsNot("sources[].clock", These(&["event-time"])),
        ],
        message: PRIVATE_EVENT_TIME,
    },
    Rule {
        when: &[Has("epochs.records")],
        then: &[Lacks("sources")],
        message: "epochs with a fixed number of records need a single source: the order in which records of several sources arrive \
                  can't be reproduced after a restart, so records would move to other epochs; use epochs of time in [epochs]",
    },
    Rule {
        when: &[Has("epochs.records")],
        then: &[Lacks("source.id")],
        message: "duplicates are detected within an epoch, and with records = … a duplicate falls into another epoch: use epochs of \
                  time in [epochs]",
    },
    Rule {
        when: &[
            Has("epochs.time"),
            IsNot("epochs.clock", These(&["end-of-input"])),
            IsNot("epochs.late", These(&["drop"])),
        ],
        then: &[Lacks("source.id")],
        message: LATE_DUPLICATES,
    },
    Rule { when: &[Has("epochs.records")], then: &[Lacks("source.largest_jump")], message: UNMOVED },
    Rule {
        when: &[Is("epochs.clock", These(&["end-of-input"]))],
        then: &[Lacks("source.largest_jump")],
        message: UNMOVED,
    },
    Rule {
        when: &[Lacks("key")],
        then: &[Lacks("columns[].bounds")],
        message: "there is no [key], so no key can have bounds of its own: leave them out",
    },
    Rule {
        when: &[Has("key.discover")],
        then: &[Lacks("columns[].bounds")],
        message: "keys are discovered, so nobody can state bounds for one of them: leave them out, or list the keys",
    },
    Rule {
        when: &[Has("key.discover")],
        then: &[Lacks("entity.sent_limit")],
        message: "no proof covers the number of sent records of keys that are discovered: leave it out, or list the keys",
    },
    Rule {
        when: &[Has("key.discover")],
        then: &[IsNot("release.method", Of(estimators))],
        message: "estimates of windows read records by their keys, which must be listed: list the keys, or choose method = \"jme\"",
    },
    Rule {
        when: &[Has("key.discover")],
        then: &[IsNot("privacy.neighbours", These(&["replace-one-in-place"]))],
        message: "with these neighbours the keys of all rows are public, so there is nothing to discover: list the keys, or choose \
                  other neighbours",
    },
    Rule {
        when: &[Has("key.discover")],
        then: &[IsNot("views[].keys", These(&["total"]))],
        message: "records whose key is not shown are in no total: choose \"each\", or publish the total with another pipeline",
    },
    Rule {
        when: &[Is("release.method", Of(estimators))],
        then: &[Lacks("columns[].bounds")],
        message: "this method reads windows in the units of the columns, so keys can't have bounds of their own: leave them out, or \
                  choose method = \"jme\"",
    },
    Rule {
        when: &[Is("release.method", Of(complete))],
        then: &[
            IsNot("source.missing", These(&["by-column"])),
            IsNot("sources[].missing", These(&["by-column"])),
        ],
        message: "this method needs complete rows: choose \"skip\", or method = \"jme\"",
    },
    Rule {
        when: &[IsSingle("columns"), IsNot("release.method", Of(complete))],
        then: &[
            IsNot("source.missing", These(&["by-column"])),
            IsNot("sources[].missing", These(&["by-column"])),
        ],
        message: "there is one column, so a row without it counts for nothing: leave it out",
    },
    Rule {
        when: &[],
        then: &[IsNotSingle("sources")],
        message: "found only one of [[sources]]: write a single source as [source]",
    },
    Rule {
        when: &[Is("release.method", Of(second_moments))],
        then: &[IsNot("privacy.second_moments", These(&["none"]))],
        message: "every method but jme needs second moments: choose full or diagonal, or method = \"jme\"",
    },
    Rule {
        when: &[Is("release.method", Of(unweighted))],
        then: &[Lacks("privacy.second_moment_weight")],
        message: UNWEIGHTED,
    },
    Rule {
        when: &[Is("privacy.second_moments", These(&["none"])), IsNot("release.method", Of(estimators))],
        then: &[Lacks("privacy.second_moment_weight")],
        message: UNWEIGHTED,
    },
    Rule {
        when: &[Is("release.method", Of(estimators))],
        then: &[
            Lacks("privacy.clip_norm"),
            Lacks("privacy.second_moment_weight"),
            Lacks("privacy.second_moments"),
            Lacks("simulation.offsets"),
        ],
        message: "this is for moments, and estimators of windows release none: leave it out",
    },
    Rule {
        when: &[Is("release.method", Of(estimators))],
        then: &[Lacks("entity.sent_limit")],
        message: "the number of sent records is released beside moments, and this method releases none: leave it out",
    },
    Rule {
        when: &[Is("release.method", Of(estimators))],
        then: &[Lacks("views")],
        message: "this is for moments; estimates of windows have no views: leave it out",
    },
    Rule {
        when: &[Is("release.method", Of(estimators))],
        then: &[Lacks("simulation.offsets")],
        message: "offsets shift the noise of sums, and this method releases no sums: leave them out",
    },
    Rule {
        when: &[Is("release.method", Of(estimators))],
        then: &[Lacks("histograms")],
        message: "histograms are released beside moments, and this method releases none: leave them out, or choose \
                  method = \"jme\"",
    },
    Rule {
        when: &[Lacks("histograms")],
        then: &[Lacks("privacy.histogram_weight")],
        message: "there are no [[histograms]]: leave it out",
    },
    Rule {
        when: &[Is("entity.several", These(&["average"]))],
        then: &[Lacks("histograms[].values")],
        message: "texts have no mean, and several = \"average\" makes the records of a key one: choose \"keep\"",
    },
    Rule {
        when: &[Is("release.method", Of(means))],
        then: &[Is("privacy.neighbours", These(&["replace-one-in-place"]))],
        message: "a mean of windows needs neighbours = \"replace-one-in-place\": the number of records in a window must be public",
    },
    Rule {
        when: &[Is("release.method", Of(covariances))],
        then: &[Is("privacy.neighbours", These(&["replace-one-in-place", "zero-out"]))],
        message: "a covariance of windows needs neighbours = \"replace-one-in-place\", or \"zero-out\": a record must not move \
                  between windows",
    },
];

/// Explains why event times can't be the clock.
pub(in crate::pipeline) const PRIVATE_EVENT_TIME: &str = "an event time is part of the private record unless [privacy] has neighbours = \
    \"replace-one-in-place\", so it must not decide when epochs close: name an arrival column (arrival = \
    \"recorded_at\"), or use clock = \"end-of-input\", or choose those neighbours if event times are public";

/// Explains why late records must not be moved where duplicates are found.
pub(in crate::pipeline) const LATE_DUPLICATES: &str = "a duplicate that arrives after its epoch has closed would count in a later one: add late = \"drop\" to [epochs]";

/// Explains why a source has no `largest_jump`.
pub(in crate::pipeline) const UNMOVED: &str = "no row advances a clock here: leave it out";

const UNWEIGHTED: &str =
    "this weight is for second moments with method = \"jme\", \"cs\" or \"joint-clip\": leave it out";

/// Returns the methods of moments that `is_one` accepts.
fn methods(is_one: impl Fn(Method) -> bool) -> Vec<&'static str> {
    METHODS.iter().filter(|word| is_one(word.value)).map(|word| word.name).collect()
}

/// Methods that need complete rows.
fn complete() -> Vec<&'static str> {
    [methods(|method| !method.takes_missing_values()), estimators()].concat()
}

/// Methods that need second moments.
fn second_moments() -> Vec<&'static str> {
    methods(Method::needs_second_moments)
}

/// Methods without a weight of second moments.
fn unweighted() -> Vec<&'static str> {
    methods(|method| !method.weighs_second_moments())
}
