//! Fields of `[[histograms]]`.

use crate::document::definition::{FieldDefinition as Field, FieldType, SectionDefinition};
use crate::document::rules::Fact::{Has, Lacks};
use crate::document::rules::Rule;

/// Maximum number of bins of one histogram.
pub(in crate::pipeline) const MAX_BINS: u64 = 65_536;

pub(super) static HISTOGRAM: SectionDefinition = SectionDefinition {
    heading: "[[histograms]]",
    about: "Counts of the records by ranges of a number, or by values of a text, released beside the moments.",
    fields: &[
        Field::required(
            "column",
            FieldType::Text,
            "\"age\"",
            "One of `[[columns]]`, or another column of the source. A record whose value is missing, can't be read \
             or is not listed falls into no bin.",
        ),
        Field::optional(
            "edges",
            FieldType::Edges,
            "required, or `bins` or `values`",
            "[0, 18, 65, 120]",
            "At most 65,537 edges of the bins, ascending; a bin holds its lower edge. Values beyond the outer edges fall into \
             the nearest bin.",
        )
        .costs("The edges are published. Choose them without looking at the data."),
        Field::optional(
            "bins",
            FieldType::Count { least: 2, most: MAX_BINS },
            "required, or `edges` or `values`",
            "20",
            "Number of bins of equal width between the bounds of one of `[[columns]]`, those of each key where keys have their own.",
        )
        .costs("None: each bin has the same noise, whatever their number. But quantiles get noisier with more bins."),
        Field::optional(
            "values",
            FieldType::Texts,
            "required, or `edges` or `bins`",
            "[\"card\", \"cash\"]",
            "At most 65,536 values of a text column, one bin for each. A text such as `NA` is a value like others; an empty \
             text and null are missing.",
        )
        .costs("The list is published, also values without records. Take it from public knowledge, not from the data."),
        Field::optional(
            "branching",
            FieldType::Count { least: 2, most: 1024 },
            "the bins alone are counted",
            "8",
            "Also counts groups of this many neighbouring bins, groups of groups, and so on: quantiles and distribution \
             functions of many bins have less noise. Fewer than the bins.",
        )
        .costs("Each of the L levels counts as a histogram, so the noise of a bin grows by at most √L."),
    ],
    rules: &[Rule {
        when: &[Has("values")],
        then: &[Lacks("branching")],
        message: "values have no neighbours to count together: leave it out",
    }],
    one_of: || vec!["edges".into(), "bins".into(), "values".into()],
    ..SectionDefinition::EMPTY
};
