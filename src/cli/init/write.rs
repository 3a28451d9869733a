//! The text of a pipeline file, with comments.

use hushflow::format::Delimiter;
use hushflow::pipeline::Format;

use super::draft::Draft;
use super::values::{ColumnBounds, KeyBounds, Keys, repeat_policy_word};

/// Returns the text of a pipeline file.
pub(super) fn pipeline(name: &str, paths: &[String], format: Format, draft: &Draft) -> String {
    let paths: Vec<_> = paths.iter().map(|path| text(path)).collect();
    let path = if paths.len() == 1 { paths[0].clone() } else { format!("[{}]", paths.join(", ")) };
    let format = match format {
        Format::Csv(Delimiter::Comma) => "\"csv\"".into(),
        Format::Csv(delimiter) => {
            format!("\"csv\"\ndelimiter = {}", text(&char::from(delimiter.byte()).to_string()))
        }
        Format::Parquet => "\"parquet\"".into(),
        _ => String::from("\"ndjson\""),
    };
    let times = draft
        .time_format
        .as_ref()
        .map_or(String::new(), |format| format!("time_format = {}\n", text(format.name())));
    let missing = format!("missing = {}", text(draft.missing.as_deref().unwrap_or("skip")));
    let mut file = format!(
        "# Written by hushflow init. Check it with: hushflow check FILE

name = {}

[source]
path = {path}
format = {format}
{times}{missing:36}# rows that lack a value: \"skip\" them, or count them \"by-column\"
preflight = \"stop\"                  # stop before epochs are published if most rows would not count,
                                    # or nearly all epochs are empty. A stop tells readers a bit
                                    # about the rows, which (ε, δ) does not cover. \"warn\" only
                                    # warns you of private reasons

# The published columns. Bounds are public and must not come from the data. Values outside of them
# are clipped; bounds that are too wide cost accuracy.
",
        text(name)
    );
    for ColumnBounds { name, lower, upper } in &draft.columns {
        file += &format!(
            "[[columns]]\nname = {}\nlower = {}\nupper = {}\n",
            text(name),
            digits(*lower),
            digits(*upper)
        );
        let own = draft.key_bounds.iter().filter(|bounds| bounds.column.name == *name);
        let own: String = own
            .map(|KeyBounds { key, column }| {
                format!("{} = [{}, {}]\n", quoted(key), digits(column.lower), digits(column.upper))
            })
            .collect();
        file += &if own.is_empty() {
            "\n".into()
        } else {
            format!("[columns.bounds]   # of single keys\n{own}\n")
        };
    }
    if let Some(Keys { column, values }) = &draft.key {
        let values: Vec<_> = values.iter().map(|value| text(value)).collect();
        file += &format!(
            "# One series of releases per key. The list is public; rows with other keys are skipped.\n[key]\ncolumn = {}\nvalues = \
             [{}]\n\n",
            text(column),
            values.join(", ")
        );
    }
    file += &epochs(draft);
    file += &privacy(draft);
    file += &format!(
        "# `hushflow plan FILE` compares strategies; without one, a strategy is fitted to the workload.
[release]
workload = \"prefix\"

[state]
directory = {}
",
        text(&format!("{name}-state"))
    );
    file
}

fn epochs(draft: &Draft) -> String {
    let epoch = draft.epoch.as_deref().unwrap_or("1d");
    let Some(time) = &draft.time else {
        return format!(
            "# An epoch is a number of rows.\n[epochs]\nrecords = {epoch}\nhorizon = {}\n\n",
            draft.horizon
        );
    };
    let clock = match &draft.arrival {
        Some(arrival) => format!(
            "arrival = {}   # the public clock: when the row arrived\nallowed_lateness = \"0s\"          # how long an epoch stays open for \
             late rows",
            text(arrival)
        ),
        None => "clock = \"end-of-input\"             # all epochs close when the input ends".into(),
    };
    let zone = draft.timezone.as_ref().map_or(String::new(), |zone| {
        format!("timezone = {}   # of days, weeks and months, and of times without an offset\n", text(zone))
    });
    format!(
        "# Epoch 1 begins at `start`; every epoch up to the horizon costs the same budget, used or not.\n[epochs]\ntime = {}\n{clock}\n\
         {zone}start = {}\nlength = {}\nhorizon = {}\n\n",
        text(time),
        text(&draft.start),
        text(epoch),
        draft.horizon
    )
}

fn privacy(draft: &Draft) -> String {
    let unit = if draft.entity.is_some() { "unit = \"entity\"\n" } else { "" };
    let about = match &draft.entity {
        None => "one record: one row of the source".into(),
        Some(column) => format!("all records with the same {column:?}"),
    };
    let mut file = format!(
        "# All releases together are (ε, δ)-differentially private for {about}.\n[privacy]\n{unit}epsilon = {}\ndelta = {:e}\n\n",
        digits(draft.epsilon),
        draft.delta
    );
    if let Some(column) = &draft.entity {
        file += &format!(
            "# Each {column:?} counts in at most `participations` of the epochs, with at most `records_per_epoch` records in\n# each. Its \
             other records are left out, and the published means are those of the records that count. More\n# participations and \
             records need more noise. With too few, a run stops once most new records are left out.\n# With several = \"average\" the \
             records of one key and epoch become one record, their mean.\n[entity]\ncolumn = {}\nparticipations = {}\n\
             records_per_epoch = {}\nseveral = {}\n\
             # sent_limit = 20   # publishes which share of the records counted, with up to 20 of each\n\n",
            text(column),
            draft.participations.unwrap_or(1),
            draft.records.unwrap_or(1),
            text(repeat_policy_word(draft.repeat_policy.unwrap_or_default()))
        );
    }
    file
}

/// Formats a text of TOML.
fn text(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// Formats a key of TOML.
fn quoted(key: &str) -> String {
    serde_json::Value::from(key).to_string()
}

/// Formats a number of TOML with all its digits.
fn digits(number: f64) -> String {
    if number == number.trunc() && number.abs() < 1e15 {
        format!("{}", number as i64)
    } else {
        format!("{number:?}")
    }
}
