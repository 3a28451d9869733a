//! Prints the reference for a terminal.

use std::fmt::Write;

use super::{TERMS, new_words, presence, printed_groups, sections, type_of};
use crate::document::definition::{FieldDefinition, SectionDefinition, ValueForm};

/// Name of the glossary among the sections.
const WORDS: &str = "words";

/// Returns the names that [`text`] takes.
pub fn section_names() -> Vec<&'static str> {
    let names = sections().into_iter().skip(1).map(name);
    std::iter::once("top").chain(names).chain([WORDS]).collect()
}

/// `ledger.budget` of `[ledger.budget]`; `top` for the fields before the first section.
fn name(section: &SectionDefinition) -> &'static str {
    let name = section.heading.trim_matches(['[', ']']);
    if name.is_empty() { "top" } else { name }
}

/// Returns the reference, or a section of it, in lines of at most `width` characters where words
/// allow it; `None` if there is no such section.
pub fn text(only: Option<&str>, width: usize) -> Option<String> {
    let mut page = Page { text: String::new(), width: width.clamp(40, 100) };
    for section in sections() {
        if only.is_none_or(|only| name(section) == only) {
            page.section(section);
        }
    }
    if only.is_none_or(|only| only == WORDS) {
        page.paragraph("Words and letters in tables and JSON", 0);
        page.text.push('\n');
        for (term, meaning) in TERMS {
            page.paragraph(&format!("{term}: {meaning}"), 2);
        }
    }
    (!page.text.is_empty()).then_some(page.text)
}

struct Page {
    text: String,
    width: usize,
}

impl Page {
    fn section(&mut self, section: &SectionDefinition) {
        let heading = if section.heading.is_empty() { "The pipeline file" } else { section.heading };
        self.paragraph(heading, 0);
        self.paragraph(section.about, 0);
        let one_of = (section.one_of)();
        if !one_of.is_empty() {
            self.paragraph(&format!("Exactly one of {} is present.", one_of.join(" and ")), 0);
        }
        self.text.push('\n');
        for (title, fields) in printed_groups(section) {
            if let Some(title) = title {
                self.paragraph(&format!("For {title}:"), 0);
                self.text.push('\n');
            }
            (0..fields.len()).for_each(|at| self.field(&fields[at], new_words(fields, at)));
        }
    }

    fn field(&mut self, field: &FieldDefinition, words: Vec<ValueForm>) {
        let without = match presence(field) {
            required if required == "required" => required,
            without => format!("without it: {without}"),
        };
        match field.value.section() {
            Some(section) => self.paragraph(&format!("{}  ({without})", section.heading), 2),
            None => {
                self.paragraph(&format!("{} = {}", field.key, field.example), 2);
                self.paragraph(&format!("{} ({}; {without})", field.about, type_of(field.value)), 6);
            }
        }
        if !field.privacy.is_empty() {
            self.paragraph(&format!("Privacy: {}", field.privacy), 6);
        }
        for ValueForm { usage, about } in words {
            self.paragraph(&format!("{usage}: {about}"), 8);
        }
        self.text.push('\n');
    }

    /// Adds a paragraph, wrapped, after a margin of blanks.
    fn paragraph(&mut self, paragraph: &str, margin: usize) {
        let mut column = 0;
        for word in paragraph.split_whitespace() {
            let letters = word.chars().count();
            if column > 0 && column + 1 + letters > self.width {
                self.text.push('\n');
                column = 0;
            }
            if column == 0 {
                let _ = write!(self.text, "{:margin$}{word}", "");
                column = margin + letters;
            } else {
                let _ = write!(self.text, " {word}");
                column += 1 + letters;
            }
        }
        self.text.push('\n');
    }
}
