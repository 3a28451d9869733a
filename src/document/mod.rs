//! Reads a TOML document: values keep their position, and all problems of a file are reported at
//! once.
//!
//! A [`Section`] returns the fields of one table, by their [definition](SectionDefinition). An
//! invalid field adds a [`PipelineProblem`] with its line, column and dotted name, and reads as
//! absent. [`Section::finish`] reports unknown fields and fields that were never read.

pub(crate) mod definition;
pub(crate) mod rules;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use crate::spelling::closest;
use crate::time::parse_duration;
use definition::{FieldDefinition, FieldType, Range as NumberRange, SectionDefinition, Word};
use rules::Breach;

/// A problem in a pipeline file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PipelineProblem {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The dotted name of the field or table, such as `columns[1].upper`; empty for a syntax error.
    pub field: String,
    /// The value found, the expected one and how to fix it.
    pub message: String,
}

impl fmt::Display for PipelineProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.field.is_empty() { "" } else { ": " };
        write!(f, "{}:{}: {}{separator}{}", self.line, self.column, self.field, self.message)
    }
}

/// The text of a document and the problems found in it so far.
pub(crate) struct Document<'a> {
    text: &'a str,
    problems: RefCell<Vec<PipelineProblem>>,
    /// The definition of the whole document, once it is read.
    root: Cell<Option<&'static SectionDefinition>>,
}

impl<'a> Document<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Document { text, problems: RefCell::default(), root: Cell::default() }
    }

    pub(crate) fn parse(&self) -> Option<DeTable<'a>> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        let lines = self.text.lines().filter(|line| !line.trim().is_empty()).count();
        // Another kind of file has an error in each line, and one says it.
        let is_other_file = errors.len() > 1 && errors.len() >= lines;
        for error in errors.iter().take(if is_other_file { 1 } else { usize::MAX }) {
            let hint = match error.message() {
                _ if is_other_file => "; no line is TOML: name a pipeline file, which `hushflow init` writes",
                message if message.starts_with("invalid boolean") => "; text needs quotes",
                _ => "",
            };
            self.report(error.span().unwrap_or(0..0), "", format!("{}{hint}", error.message()));
        }
        errors.is_empty().then(|| table.into_inner())
    }

    fn report(&self, span: Range<usize>, field: &str, message: impl Into<String>) {
        let (line, column) = line_and_column(self.text, span.start);
        self.problems.borrow_mut().push(PipelineProblem {
            line,
            column,
            field: field.into(),
            message: message.into(),
        });
    }

    /// Returns the problems in file order, each once: a field may be read more than once.
    pub(crate) fn into_problems(self) -> Vec<PipelineProblem> {
        let mut problems = self.problems.into_inner();
        problems.sort();
        problems.dedup();
        problems
    }
}

/// Names under which a password is written by mistake.
const PASSWORDS: &[&str] = &["secret", "pass", "passwd", "pwd", "secret_key", "secret_access_key"];

/// Says that a field is missing.
fn missing(key: &str, definition: &FieldDefinition) -> String {
    format!("the field {key} is missing: add for example {}", definition.remedy())
}

/// The line and the column, from 1, of a byte of a text.
fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
    (before.matches('\n').count() + 1, column)
}

/// Returns the line and the column of a field such as `privacy.epsilon` of a document, or of the
/// section that lacks it.
pub(crate) fn position(text: &str, field: &str) -> Option<(usize, usize)> {
    let (root, _) = DeTable::parse_recoverable(text);
    let (mut table, mut start) = (Some(root.get_ref()), None);
    for key in field.split('.') {
        let Some(value) = table.and_then(|table| table.get(key)) else { break };
        (table, start) = (value.get_ref().as_table(), Some(value.span().start));
    }
    Some(line_and_column(text, start?))
}

/// A table whose fields are being read.
pub(crate) struct Section<'a> {
    document: &'a Document<'a>,
    table: &'a DeTable<'a>,
    definition: &'static SectionDefinition,
    name: String,
    span: Range<usize>,
    read_keys: RefCell<Vec<&'static str>>,
}

/// A value with its position, so that problems can be reported later.
pub(crate) struct Field<'a, T> {
    document: &'a Document<'a>,
    pub(crate) name: String,
    span: Range<usize>,
    pub(crate) value: T,
}

impl<'a> Section<'a> {
    pub(crate) fn root(
        document: &'a Document<'a>,
        table: &'a DeTable<'a>,
        definition: &'static SectionDefinition,
    ) -> Self {
        document.root.set(Some(definition));
        let read_keys = RefCell::default();
        Section { document, table, definition, name: String::new(), span: 0..0, read_keys }
    }

    /// Returns the definition of the field `key`. A test reads every section, so it finds fields
    /// that have no definition.
    fn definition(&self, key: &str) -> &'static FieldDefinition {
        let heading = self.definition.heading;
        let definition = self.definition.field(key);
        definition.unwrap_or_else(|| panic!("the field {key} is not in the table of {heading:?}"))
    }

    /// Returns the field `key` if present.
    pub(crate) fn get(&self, key: &'static str) -> Option<Field<'a, &'a DeValue<'a>>> {
        self.definition(key);
        self.found(key)
    }

    fn found(&self, key: &'static str) -> Option<Field<'a, &'a DeValue<'a>>> {
        self.read_keys.borrow_mut().push(key);
        let (found, value) = self.table.iter().find(|(found, _)| found.get_ref() == key)?;
        let name = self.dotted(found.get_ref());
        Some(Field { document: self.document, name, span: value.span(), value: value.get_ref() })
    }

    /// Reports the field `key` if present.
    pub(crate) fn refuse(&self, key: &'static str, message: impl Into<String>) {
        if let Some(field) = self.found(key) {
            field.report(message);
        }
    }

    /// Whether the field `key` is present.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.get(key).is_some()
    }

    /// Returns the text `key` if present.
    pub(crate) fn text(&self, key: &'static str) -> Option<Field<'a, &'a str>> {
        self.get(key)?.text()
    }

    /// Returns the number `key` in the range of its definition if present; integers are accepted.
    pub(crate) fn number(&self, key: &'static str) -> Option<Field<'a, f64>> {
        let value = self.definition(key).value;
        let range = if let FieldType::Number(range) = value { range } else { NumberRange::FINITE };
        self.get(key)?.read(&value.expected(), |value| number_value(value).filter(|&x| range.contains(x)))
    }

    /// Returns the whole number `key` in the range of its definition if present.
    pub(crate) fn count(&self, key: &'static str) -> Option<Field<'a, u64>> {
        let value = self.definition(key).value;
        let (least, most) =
            if let FieldType::Count { least, most } = value { (least, most) } else { (0, u64::MAX) };
        self.get(key)?.read(&value.expected(), |value| match value {
            DeValue::Integer(integer) => {
                u64::try_from(integer_value(integer)?).ok().filter(|count| (least..=most).contains(count))
            }
            // `3.0` is whole too, as in JSON schemas.
            DeValue::Float(_) => {
                let number = number_value(value).filter(|number| number.fract() == 0.0)?;
                let whole = (0.0..=LARGEST_WHOLE).contains(&number).then_some(number as u64);
                whole.filter(|count| (least..=most).contains(count))
            }
            _ => None,
        })
    }

    /// Returns the boolean `key` if present.
    pub(crate) fn flag(&self, key: &'static str) -> Option<bool> {
        self.get(key)?.read("true or false", DeValue::as_bool).map(|field| field.value)
    }

    /// Returns the value of the word `key` if present. Error messages list all words of the
    /// definition.
    pub(crate) fn word<T: Copy>(&self, key: &'static str, words: &[Word<T>]) -> Option<T> {
        let field = self.text(key)?;
        let found = words.iter().find(|word| word.name == field.value);
        if found.is_none() {
            let value = self.definition(key).value;
            let meant = value.meant(field.value);
            field.report(format!("found {:?}, expected {}{meant}", field.value, value.expected()));
        }
        found.map(|word| word.value)
    }

    /// Returns the duration `key` in microseconds if present.
    pub(crate) fn duration(&self, key: &'static str) -> Option<i64> {
        let value = self.definition(key).value;
        let least = if let FieldType::Duration { least } = value { least } else { 0 };
        let field = self.text(key)?.map(|text| {
            let duration = parse_duration(text).filter(|&duration| duration >= least);
            duration.ok_or_else(|| format!("found {text:?}, expected {}", value.expected()))
        });
        field.map(|field| field.value)
    }

    /// Returns the value of the text `key` if present. `parse` returns `None` for a text that is
    /// not in the form of its definition.
    pub(crate) fn form<T>(&self, key: &'static str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let value = self.definition(key).value;
        let expected = value.expected();
        let field = self.get(key)?.text_of(&expected)?;
        let parsed = field.map(|text| {
            parse(text).ok_or_else(|| format!("found {text:?}, expected {expected}{}", value.meant(text)))
        });
        parsed.map(|field| field.value)
    }

    /// Returns the table `key` if present.
    pub(crate) fn section(&self, key: &'static str) -> Option<Section<'a>> {
        self.get(key)?.section(self.of_section(key))
    }

    fn of_section(&self, key: &str) -> &'static SectionDefinition {
        self.definition(key).value.section().unwrap_or(&SectionDefinition::EMPTY)
    }

    /// Returns the table `key` if present, without reporting problems.
    pub(crate) fn peek(&self, key: &str) -> Option<Section<'a>> {
        let value = self.table.get(key)?;
        let table = value.get_ref().as_table()?;
        let (document, name, span) = (self.document, self.dotted(key), value.span());
        let definition = self.of_section(key);
        Some(Section { document, table, definition, name, span, read_keys: RefCell::default() })
    }

    /// Returns the text `key` if present, without reporting problems.
    pub(crate) fn peek_text(&self, key: &str) -> Option<&'a str> {
        self.table.get(key)?.get_ref().as_str()
    }

    /// Returns all fields of a table whose keys are free.
    pub(crate) fn entries(&self) -> Vec<(&'a str, Field<'a, &'a DeValue<'a>>)> {
        let fields = self.table.iter().map(|(key, value)| {
            let key: &'a str = key.get_ref();
            let (document, name, span) = (self.document, self.dotted(key), value.span());
            (key, Field { document, name, span, value: value.get_ref() })
        });
        fields.collect()
    }

    /// Returns the tables `[[key]]`; empty if absent.
    pub(crate) fn sections(&self, key: &'static str) -> Vec<Section<'a>> {
        let array = self.get(key).and_then(|field| field.read("tables [[…]]", DeValue::as_array));
        let of_section = self.of_section(key);
        let items = array.map(|array| array.items().filter_map(|item| item.section(of_section)).collect());
        items.unwrap_or_default()
    }

    /// Returns `value`. Reports `key` as missing if the table has no such field.
    pub(crate) fn require<T>(&self, key: &str, value: Option<T>) -> Option<T> {
        if value.is_none() && !self.has(key) {
            self.report(missing(key, self.definition(key)));
        }
        value
    }

    /// Returns the required text `key`.
    pub(crate) fn required_text(&self, key: &'static str) -> Option<Field<'a, &'a str>> {
        self.require(key, self.text(key))
    }

    /// Reports a problem of the whole table.
    pub(crate) fn report(&self, message: impl Into<String>) {
        self.document.report(self.span.clone(), &self.name, message);
    }

    /// Reports unknown fields. If `is_read`, no problem has ended the reading of the section. Then
    /// it also reports fields that were never read: they belong to another kind of section.
    pub(crate) fn finish(&self, is_read: bool) {
        let broken = self.check_rules();
        let read_keys = self.read_keys.borrow();
        for (key, _) in self.table {
            let field: &str = key.get_ref();
            if read_keys.contains(&field) || broken.contains(&field) {
                continue;
            }
            let message = match (self.definition.field(field), self.definition.kinds_with(field)) {
                (None, _) => {
                    let keys = self.definition.keys();
                    let hint = match (self.references(field), self.homes(field), closest(field, &keys)) {
                        (Some(fields), ..) => format!("secrets are given by reference: use {fields}"),
                        (_, Some(homes), _) => format!("it belongs to {homes}"),
                        (_, _, Some(meant)) => format!("did you mean {meant}?"),
                        _ => format!("expected one of {}", keys.join(", ")),
                    };
                    format!("unknown field: {hint}")
                }
                _ if !is_read => continue,
                (_, Some(kinds)) => format!("this field is for {kinds}: leave it out"),
                (_, None) => "this field has no effect together with the other fields: leave it out".into(),
            };
            self.document.report(key.span(), &self.dotted(field), message);
        }
    }

    /// Names the fields that refer to a secret which an unknown field was meant to hold.
    fn references(&self, field: &str) -> Option<String> {
        let name = if PASSWORDS.contains(&field) { "password" } else { field };
        let fields = ["env", "file"].map(|end| format!("{name}_{end}"));
        fields.iter().all(|field| self.definition.field(field).is_some()).then(|| fields.join(" or "))
    }

    /// Names the other sections that have a field, if there are one or two.
    fn homes(&self, field: &str) -> Option<String> {
        let homes = self.document.root.get()?.homes(field);
        (1..=2).contains(&homes.len()).then(|| homes.join(" or "))
    }

    /// Reports broken rules of the section. Returns the paths of their fields.
    fn check_rules(&self) -> Vec<&'static str> {
        let mut broken = Vec::new();
        for rule in self.definition.rules {
            for Breach { name, span, path } in rule.breaches(self.table) {
                let name = if name.is_empty() { self.name.clone() } else { self.dotted(&name) };
                let span = span.unwrap_or(self.span.clone());
                let message = match rule.message {
                    "" => missing(path, self.definition(path)),
                    message => message.into(),
                };
                self.document.report(span, &name, message);
                broken.push(path);
            }
        }
        broken
    }

    fn dotted(&self, key: &str) -> String {
        if self.name.is_empty() { key.into() } else { format!("{}.{key}", self.name) }
    }
}

impl<'a, T> Field<'a, T> {
    pub(crate) fn report(&self, message: impl Into<String>) {
        self.document.report(self.span.clone(), &self.name, message);
    }

    /// Returns the field if `valid`. Otherwise reports that `expected` was expected.
    pub(crate) fn filter(self, expected: &str, valid: impl Fn(&T) -> bool) -> Option<Self> {
        if valid(&self.value) {
            return Some(self);
        }
        self.report(format!("found {}, expected {expected}", self.found()));
        None
    }

    /// Converts the value, or reports the error.
    pub(crate) fn map<U>(self, convert: impl FnOnce(&T) -> Result<U, String>) -> Option<Field<'a, U>> {
        match convert(&self.value) {
            Ok(value) => Some(Field { document: self.document, name: self.name, span: self.span, value }),
            Err(problem) => {
                self.report(problem);
                None
            }
        }
    }

    /// Returns the value as written in the file, truncated if it is long. Fields that name a secret
    /// are not quoted, because they may contain the secret itself by mistake.
    fn found(&self) -> String {
        if ["_env", "_file"].iter().any(|end| self.name.ends_with(end)) {
            return "another value".into();
        }
        let text = self.document.text.get(self.span.clone()).unwrap_or_default();
        match text.char_indices().nth(40) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text.into(),
        }
    }
}

impl<'a> Field<'a, &'a DeValue<'a>> {
    fn read<T>(
        self,
        expected: &str,
        read: impl FnOnce(&'a DeValue<'a>) -> Option<T>,
    ) -> Option<Field<'a, T>> {
        let found = format!("found {}, expected {expected}", self.found());
        self.map(|value| read(value).ok_or(found))
    }

    pub(crate) fn text(self) -> Option<Field<'a, &'a str>> {
        self.text_of("a text in quotes")?.filter("a text that is not empty", |text| !text.is_empty())
    }

    /// Returns the text, or reports that `expected` was expected.
    pub(crate) fn text_of(self, expected: &str) -> Option<Field<'a, &'a str>> {
        self.read(expected, DeValue::as_str)
    }

    /// Returns a text, or a bare TOML date or time as text.
    pub(crate) fn time_text(self) -> Option<Field<'a, String>> {
        self.read("a date or an RFC 3339 time", |value| match value {
            DeValue::Datetime(time) => Some(time.to_string()),
            value => value.as_str().map(String::from),
        })
    }

    /// Returns a list of texts; a single text is a list of one.
    pub(crate) fn texts(self) -> Option<Vec<Field<'a, &'a str>>> {
        if self.value.is_str() {
            return Some(vec![self.text()?]);
        }
        let array = self.read("a list of texts", DeValue::as_array)?;
        let array = array.filter("a list that is not empty", |items| !items.is_empty())?;
        // Every item is read, so that each wrong one is reported.
        let texts: Vec<_> = array.items().map(Field::text).collect();
        texts.into_iter().collect()
    }

    /// Returns a list of finite numbers.
    pub(crate) fn numbers(self, expected: &str) -> Option<Field<'a, Vec<f64>>> {
        self.read(expected, |value| {
            value.as_array()?.iter().map(|number| number_value(number.get_ref())).collect()
        })
    }

    fn section(self, definition: &'static SectionDefinition) -> Option<Section<'a>> {
        let Field { document, name, span, value } = self.read("a table", DeValue::as_table)?;
        Some(Section { document, table: value, definition, name, span, read_keys: RefCell::default() })
    }
}

impl<'a> Field<'a, &'a DeArray<'a>> {
    fn items(&self) -> impl Iterator<Item = Field<'a, &'a DeValue<'a>>> + use<'a> {
        let (document, name) = (self.document, self.name.clone());
        let item = move |(index, value): (usize, &'a Spanned<DeValue<'a>>)| {
            let name = format!("{name}[{index}]");
            Field { document, name, span: value.span(), value: value.get_ref() }
        };
        self.value.iter().enumerate().map(item)
    }
}

/// Whole numbers up to this one are exact as floating-point numbers.
pub(crate) const LARGEST_WHOLE: f64 = 9_007_199_254_740_992.0;

fn number_value(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Float(float) => float.as_str().parse().ok().filter(|x: &f64| x.is_finite()),
        DeValue::Integer(integer) => Some(integer_value(integer)? as f64),
        _ => None,
    }
}

fn integer_value(integer: &toml::de::DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(integer.as_str(), integer.radix()).ok()
}
