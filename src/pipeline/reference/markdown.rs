//! Prints the reference as a Markdown page.

use std::fmt::Write;

use super::{TERMS, new_words, presence, printed_groups, sections, type_of};
use crate::document::definition::{FieldDefinition, SectionDefinition, ValueForm};

const HEAD: &str = "\
# The pipeline file

Every section and field, with its type, an example, what holds without it, and what it costs in privacy (nothing, if
that is empty). This page is printed by `hushflow reference --markdown` from the table by which the file is read;
`hushflow reference` prints it on a terminal, and `hushflow reference --json-schema` prints the
[JSON schema](pipeline.schema.json) for editors. `hushflow plan FILE` checks a file and reads no data.

For editors that use Taplo (such as the TOML extensions of VS Code, Zed and Helix), begin the file with
`#:schema pipeline.schema.json`.

- **Texts** are quoted. Paths are relative to the directory of the file.
- **Durations** are texts such as `\"1d\"`, `\"6h 30m\"` or `\"15min\"`.
- **Times** are dates or RFC 3339 times, with or without quotes.
";

/// Returns the page `docs/pipeline.md`.
pub fn markdown() -> String {
    let mut page = HEAD.to_owned();
    for section in sections() {
        add_section(&mut page, section);
    }
    page += "\n## Words and letters in tables and JSON\n\n| | |\n|---|---|\n";
    for (term, meaning) in TERMS {
        let _ = writeln!(page, "| {term} | {meaning} |");
    }
    page
}

fn add_section(page: &mut String, section: &SectionDefinition) {
    let title =
        if section.heading.is_empty() { "Top of the file".into() } else { format!("`{}`", section.heading) };
    let _ = write!(page, "\n## {title}\n\n{}\n", section.about);
    let one_of = (section.one_of)();
    if !one_of.is_empty() {
        let fields: Vec<String> = one_of.iter().map(|field| format!("`{field}`")).collect();
        let _ = write!(page, "\nExactly one of {} is present.\n", fields.join(" and "));
    }
    for (title, fields) in printed_groups(section) {
        if let Some(title) = title {
            let _ = write!(page, "\nFor {title}:\n");
        }
        *page += "\n| field | type | without it | meaning | privacy |\n|---|---|---|---|---|\n";
        for field in fields {
            add_row(page, field);
        }
        for (at, field) in fields.iter().enumerate() {
            add_words(page, field, new_words(fields, at));
        }
    }
}

fn add_row(page: &mut String, field: &FieldDefinition) {
    let (key, about) = match field.value.section() {
        Some(section) => (format!("`{}`", section.heading), section.about),
        None => (format!("`{} = {}`", field.key, field.example), field.about),
    };
    let row = [&key, &type_of(field.value), &presence(field), about, field.privacy];
    let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
    let _ = writeln!(page, "| {} |", cells.join(" | "));
}

fn add_words(page: &mut String, field: &FieldDefinition, words: Vec<ValueForm>) {
    if words.is_empty() {
        return;
    }
    let _ = write!(page, "\n| `{}` | |\n|---|---|\n", field.key);
    for ValueForm { usage, about } in words {
        let usage = usage.replace('|', "\\|");
        let _ = writeln!(page, "| `{usage}` | {about} |");
    }
}
