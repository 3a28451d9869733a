//! The format of a source's records: named in the pipeline, or chosen by the source or the
//! extension of its paths.

use super::{Input, TextField, schemes_with_fields};
use crate::document::Section;
use crate::document::definition::{FieldDefinition, FieldType, Word, forms, word};
use crate::format::Format;
use crate::format::unpack::unpacked_name;

/// Words of `format`.
const FORMATS: &[Word<Format>] = &[
    word("csv", Format::Csv, "Comma-separated values with a header row."),
    word("ndjson", Format::Ndjson, "One JSON object per line or message."),
    word("fields", Format::Fields, "Entries of Redis with named fields."),
    word("parquet", Format::Parquet, "Parquet files."),
];

/// `format` of a source.
pub(crate) const FORMAT: FieldDefinition = FieldDefinition::optional(
    "format",
    FieldType::Words(|| forms(FORMATS)),
    "by the extension of the files; `fields` for Redis, `ndjson` for other brokers",
    "\"csv\"",
    "How rows are written.",
);

/// `header` of a source.
pub(crate) const HEADER: FieldDefinition = FieldDefinition::optional(
    "header",
    FieldType::Texts,
    "the first row names the columns",
    "[\"event_time\", \"x\"]",
    "Column names of CSV that has no header row.",
);

/// The formats of a source's records.
pub(crate) struct AllowedFormats {
    /// The default format; without one the extension of the path decides.
    pub(super) usual: Option<Format>,
    pub(super) allowed: &'static [Format],
    /// Message for another format, if the source has its own.
    pub(super) expected: Option<&'static str>,
    /// Whether each record is one message, which has no header and can't be corrected.
    pub(crate) are_messages: bool,
}

impl AllowedFormats {
    /// Formats of a text stream.
    pub(super) const TEXT: AllowedFormats = AllowedFormats {
        usual: None,
        allowed: &[Format::Csv, Format::Ndjson],
        expected: None,
        are_messages: false,
    };

    /// Formats of entries that are texts with one record each.
    pub(super) const MESSAGES: AllowedFormats = AllowedFormats {
        usual: Some(Format::Ndjson),
        expected: Some("a message is text: use format = \"ndjson\" or format = \"csv\""),
        are_messages: true,
        ..AllowedFormats::TEXT
    };
}

/// The format of a source, and the column names of a CSV stream without a header line.
pub(crate) struct RecordFormat {
    pub(crate) format: Format,
    pub(crate) header: Option<Vec<String>>,
}

impl RecordFormat {
    /// Reads `format` and `header` of `[source]`.
    pub(crate) fn read(section: &Section<'_>, paths: &[TextField<'_>], input: &Input) -> Option<Self> {
        let format = section.word("format", FORMATS);
        let header = section.get("header").and_then(|field| field.texts());
        let header = header.map(|names| names.iter().map(|name| name.value.into()).collect());
        let format = format.or_else(|| usual(section, paths, input))?;
        let read = RecordFormat { format, header };
        read.check(section, &input.source().formats());
        Some(read)
    }

    /// Reports a format that the source does not have, and a wrong or missing header.
    fn check(&self, section: &Section<'_>, formats: &AllowedFormats) {
        let report = |key, message: &str| section.refuse(key, message);
        if self.header.is_some() && self.format != Format::Csv {
            report("header", "column names are only for format = \"csv\": leave it out");
        }
        if formats.are_messages && self.format == Format::Csv && self.header.is_none() {
            report(
                "format",
                "CSV lines from a broker have no header: name the columns, as header = [\"key\", \"x\"]",
            );
        }
        if !formats.allowed.contains(&self.format) {
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
fn usual(section: &Section<'_>, paths: &[TextField<'_>], input: &Input) -> Option<Format> {
    if let Some(usual) = input.source().formats().usual {
        return Some(usual);
    }
    let of = |path: &TextField<'_>| match unpacked_name(path.value.as_ref()).extension()?.to_str()? {
        "csv" => Some(Format::Csv),
        "ndjson" | "jsonl" => Some(Format::Ndjson),
        "parquet" => Some(Format::Parquet),
        _ => None,
    };
    let format = of(&paths[0]);
    let odd = paths.iter().find(|path| format.is_none() || of(path) != format);
    match odd {
        None => format,
        Some(path) if !section.has("format") => {
            path.report("the extension does not determine the format: add format = \"csv\", \"ndjson\" or \"parquet\"");
            None
        }
        Some(_) => None,
    }
}
