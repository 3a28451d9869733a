//! The format of the records of a source, which the pipeline, the source or the file extension
//! determines, and the format of their times.

use std::mem::discriminant;

use super::{Input, TextField, schemes_with_fields};
use crate::document::Section;
use crate::document::definition::{FieldDefinition, FieldType, Word, forms, word};
use crate::format::{Delimiter, Format};
use crate::time::TimeFormat;

/// Words of `format`.
const FORMATS: &[Word<Format>] = &[
    word("csv", Format::COMMAS, "Values with a header row, separated by commas or another delimiter."),
    word("ndjson", Format::Ndjson, "One JSON object per line or message."),
    word("fields", Format::Fields, "Entries of Redis with named fields, and rows of PostgreSQL."),
    word("avro", Format::Avro, "Messages of Kafka in Avro, with their schemas in a `registry`."),
    word("parquet", Format::Parquet, "Parquet files."),
];

/// `format` of a source.
pub(crate) const FORMAT: FieldDefinition = FieldDefinition::optional(
    "format",
    FieldType::Words(|| forms(FORMATS)),
    "by the extension of the files; `fields` for Redis and PostgreSQL, `ndjson` for other brokers",
    "\"csv\"",
    "How rows are written.",
);

/// Words of `delimiter`.
const DELIMITERS: &[Word<Delimiter>] = &[
    word(",", Delimiter::Comma, "A comma."),
    word(";", Delimiter::Semicolon, "A semicolon, as in spreadsheets where a comma marks decimals."),
    word("\t", Delimiter::Tab, "A tab."),
    word("|", Delimiter::Bar, "A bar."),
];

/// `delimiter` of a source.
pub(crate) const DELIMITER: FieldDefinition = FieldDefinition::optional(
    "delimiter",
    FieldType::Words(|| forms(DELIMITERS)),
    "a comma; a tab in files that end in .tsv",
    "\";\"",
    "What separates the fields of CSV. Decimals have a point, whatever separates fields.",
);

/// `header` of a source.
pub(crate) const HEADER: FieldDefinition = FieldDefinition::optional(
    "header",
    FieldType::Texts,
    "the first row names the columns",
    "[\"event_time\", \"x\"]",
    "Column names of CSV that has no header row.",
);

const TIMES: &str = "seconds, milliseconds, microseconds or nanoseconds since 1970, or a pattern with a date such as \
    \"%d.%m.%Y %H:%M\"";

/// `time_format` of a source.
pub(crate) const TIME_FORMAT: FieldDefinition = FieldDefinition::optional(
    "time_format",
    FieldType::Pattern(TIMES, "^((milli|micro|nano)?seconds|.*%.*)$"),
    "dates and RFC 3339 times",
    "\"seconds\"",
    "How times are written: as numbers of this unit since 1970, or in a pattern of `strftime`, such as \
     \"%m/%d/%Y %I:%M %p\".",
);

/// The formats of a source's records.
pub(crate) struct AllowedFormats {
    /// The default format; `None` if the extension of the path decides.
    pub(super) default: Option<Format>,
    pub(super) allowed: &'static [Format],
    /// Message for another format, if the source has a special one.
    pub(super) expected: Option<&'static str>,
    /// Whether each record is one message, which has no header and can't be corrected.
    pub(crate) are_messages: bool,
}

impl AllowedFormats {
    /// Formats of a text stream.
    pub(super) const TEXT: AllowedFormats = AllowedFormats {
        default: None,
        allowed: &[Format::COMMAS, Format::Ndjson],
        expected: None,
        are_messages: false,
    };

    /// Formats of entries that are texts with one record each.
    pub(super) const MESSAGES: AllowedFormats = AllowedFormats {
        default: Some(Format::Ndjson),
        expected: Some("a message is text: use format = \"ndjson\" or format = \"csv\""),
        are_messages: true,
        ..AllowedFormats::TEXT
    };
}

/// The format of a source, and the column names of a CSV stream without a header line.
pub(crate) struct RecordFormat {
    pub(crate) format: Format,
    pub(crate) header: Option<Vec<String>>,
    /// Format of times other than RFC 3339.
    pub(crate) time_format: Option<TimeFormat>,
}

impl RecordFormat {
    /// Reads `format`, `delimiter`, `header` and `time_format` of `[source]`.
    pub(crate) fn read(section: &Section<'_>, paths: &[TextField<'_>], input: &Input) -> Option<Self> {
        let format = section.word("format", FORMATS);
        let header = section.get("header").and_then(|field| field.texts());
        let header = header.map(|names| names.iter().map(|name| name.value.into()).collect());
        let format = format.or_else(|| default_format(section, paths, input))?;
        let format = match (format, section.word("delimiter", DELIMITERS)) {
            (Format::Csv(_), Some(delimiter)) => Format::Csv(delimiter),
            (format, Some(_)) => {
                section.refuse("delimiter", "a delimiter is only for format = \"csv\": leave it out");
                format
            }
            (format, None) => format,
        };
        let time_format = section.form("time_format", TimeFormat::parse);
        let read = RecordFormat { format, header, time_format };
        read.check(section, &input.source().formats());
        Some(read)
    }

    /// Reports a format that the source does not have, and a wrong or missing header.
    fn check(&self, section: &Section<'_>, formats: &AllowedFormats) {
        let report = |key, message: &str| section.refuse(key, message);
        let is_csv = matches!(self.format, Format::Csv(_));
        if self.header.is_some() && !is_csv {
            report("header", "column names are only for format = \"csv\": leave it out");
        }
        if formats.are_messages && is_csv && self.header.is_none() {
            report(
                "format",
                "CSV lines from a broker have no header: name the columns, as header = [\"key\", \"x\"]",
            );
        }
        let is_allowed = |allowed: &Format| discriminant(allowed) == discriminant(&self.format);
        if !formats.allowed.iter().any(is_allowed) {
            let expected = match formats.expected {
                Some(expected) => expected.into(),
                None if self.format == Format::Parquet => {
                    "Parquet files must be complete: name files in path, and leave follow out".into()
                }
                None => {
                    let fields = schemes_with_fields();
                    format!("fields are for {fields}: choose format = \"csv\" or format = \"ndjson\"")
                }
            };
            report(if section.has("format") { "format" } else { "path" }, &expected);
        }
    }
}

/// Returns the default format of the input, or the one on which the extensions of all paths agree.
fn default_format(section: &Section<'_>, paths: &[TextField<'_>], input: &Input) -> Option<Format> {
    if let Some(format) = input.source().formats().default {
        return Some(format);
    }
    let format_of = |path: &TextField<'_>| Format::of_name(path.value.as_ref());
    let format = format_of(&paths[0]);
    let odd = paths.iter().find(|path| format.is_none() || format_of(path) != format);
    match odd {
        None => format,
        Some(path) if !section.has("format") => {
            path.report("the extension does not determine the format: add format = \"csv\", \"ndjson\" or \"parquet\"");
            None
        }
        Some(_) => None,
    }
}
